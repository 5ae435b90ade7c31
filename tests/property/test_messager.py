"""The messager of a rank under random stories: each layer once, never too early, one status."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.core.connections import Connect, ConnectionConfig, Connections, Peer
from kvsim.core.messager import AtRest, Messager, Report, Write
from kvsim.core.send_task import OfSlot, OfStep, SendTask
from kvsim.core.signals import GENERATION_MODULUS, STEP_MODULUS, ChunkSignal, StepSignal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.messager import Output

PEERS = [Peer(1, 0), Peer(1, 1), Peer(2, 0)]


@dataclass(slots=True)
class Sent:
    """A request on this rank, and the truth about it."""

    task: SendTask
    computed: list[int]
    num_due: int = 0
    written: set[tuple[int, int]] = field(default_factory=set)
    open: set[int] = field(default_factory=set)
    report: Report | None = None
    is_added: bool = False
    is_at_rest: bool = False
    is_cancelled: bool = False


class RankStory:
    """A rank whose compute, transport and clients do what a random source says."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.num_layers = rng.randint(1, 4)
        self.block_size = rng.randint(1, 3)
        self.now = 0
        self.trouble = rng.choice([0, 0, 5, 20])
        self.messager = Messager(
            3,
            num_layers=self.num_layers,
            block_size=self.block_size,
            connections=Connections(
                ConnectionConfig(deadline_ns=60, first_pause_ns=3, longest_pause_ns=9)
            ),
        )
        self.sent: dict[tuple[int, int], Sent] = {}
        self.writes: dict[int, Write] = {}
        self.connects: list[Connect] = []
        self.step = rng.choice([0, STEP_MODULUS - 3, STEP_MODULUS - 1])
        self.generations: dict[int, int] = {}
        self.late: list[StepSignal | ChunkSignal] = []
        self.num_actions = 0

    def run(self, num_requests: int) -> None:
        """Let requests come, be computed, be sent; check all that comes out."""
        for request_id in range(num_requests):
            attempt = 0
            while True:
                self._compute(request_id, attempt)
                if self.rng.randrange(100) >= self.trouble:
                    break
                attempt += 1
        while self.messager.num_open_tasks:
            self._happen()
            assert self.num_actions < 20_000, "no end"
        for sent in self.sent.values():
            self._check_end(sent)

    # -- what compute does

    def _compute(self, request_id: int, attempt: int) -> None:
        rng = self.rng
        num_tokens = rng.randint(1, 4 * self.block_size)
        num_blocks = -(-num_tokens // self.block_size) + rng.choice([0, 0, 1])
        first = rng.randint(0, num_blocks)
        cached = first * self.block_size
        if cached >= num_tokens:
            first = num_blocks
        slot = rng.randrange(3)
        is_step = bool(rng.randrange(2))
        if is_step:
            ahead = rng.choice([1, 1, 1, 2, 40_000])
            self.step = (self.step + ahead) % STEP_MODULUS
            if ahead > 2:
                self.late.clear()  # what is half a circle late would look early
        else:
            start = GENERATION_MODULUS - 2
            self.generations[slot] = (self.generations.get(slot, start) + 1) % GENERATION_MODULUS
        task = SendTask(
            request_id=request_id,
            attempt=attempt,
            peer=rng.choice(PEERS),
            source_ids=tuple(rng.sample(range(100), num_blocks)),
            target_ids=tuple(rng.sample(range(100), num_blocks - first)),
            num_cached_tokens=cached,
            num_tokens=num_tokens,
            computed=OfStep(self.step) if is_step else OfSlot(slot, self.generations[slot]),
            deadline_at=self.now + rng.choice([30, 200, 200]),
        )
        sent = Sent(task, [0] * self.num_layers)
        self.sent[request_id, attempt] = sent
        if rng.randrange(2):
            self._add(sent)
        self._happen_often()
        for end in [num_tokens] if is_step else self._chunks(num_tokens):
            self._layers(sent, end)
        if not sent.is_added:
            self._add(sent)
        self._happen_often()

    def _chunks(self, num_tokens: int) -> list[int]:
        return sorted({self.rng.randint(1, num_tokens) for _ in range(3)} | {num_tokens})

    def _layers(self, sent: Sent, end: int) -> None:
        """Compute a chunk layer by layer; some signals are lost, late or told again."""
        computed, before = sent.task.computed, sent.computed[0]
        if isinstance(computed, OfStep):
            self._signal(StepSignal(computed.step, -1))
        for layer in range(self.num_layers):
            sent.computed[layer] = end
            signal: StepSignal | ChunkSignal = (
                StepSignal(computed.step, layer)
                if isinstance(computed, OfStep)
                else ChunkSignal(computed.slot, computed.generation, before, end - before, layer)
            )
            is_last = layer == self.num_layers - 1
            fate = self.rng.randrange(10)
            if fate or is_last:
                self._signal(signal)
            if fate == 1:
                self.late.append(signal)
            if not sent.is_added and not self.rng.randrange(4):
                self._add(sent)
            self._happen_often()

    def _signal(self, signal: StepSignal | ChunkSignal) -> None:
        if isinstance(signal, StepSignal):
            word = StepSignal.from_word(signal.to_word())
            self._take(self.messager.step_signal(word, self.now))
        else:
            chunk = ChunkSignal.from_word(signal.to_word())
            self._take(self.messager.chunk_signal(chunk, self.now))

    def _add(self, sent: Sent) -> None:
        sent.is_added = True
        self._take(self.messager.add(sent.task, self.now))

    # -- what the transport, the clock and the clients do

    def _happen_often(self) -> None:
        for _ in range(self.rng.choice([0, 1, 3])):
            self._happen()

    def _happen(self) -> None:
        rng = self.rng
        self.num_actions += 1
        self.now += rng.choice([0, 0, 1, 5])
        kind = rng.choice(["write"] * 5 + ["connect", "connect", "late", "wake", "wake", "trouble"])
        if kind == "write" and self.writes:
            number = rng.choice(list(self.writes))
            if rng.randrange(100) < self.trouble:
                self._settle(number)
                self._take(self.messager.write_failed(number, "broken"))
            else:
                self._settle(number)
                self._take(self.messager.written(number, self.now))
        elif kind == "connect" and self.connects:
            connect = self.connects.pop(rng.randrange(len(self.connects)))
            if rng.randrange(100) < 2 * self.trouble:
                self._take(self.messager.refused(*connect, "refused", self.now))
            else:
                self._take(self.messager.connected(*connect, self.now))
        elif kind == "late" and self.late:
            self._signal(self.late.pop())
        elif kind == "wake":
            self._take(self.messager.wake(self.now))
        elif kind == "trouble" and rng.randrange(100) < self.trouble:
            self._trouble()

    def _trouble(self) -> None:
        if self.rng.randrange(2):
            peer = self.rng.choice(PEERS)
            for number in [n for n, write in self.writes.items() if write.peer == peer]:
                self._settle(number)
            self._take(self.messager.peer_lost(peer, "gone"))
        elif self.sent:
            sent = self.rng.choice(list(self.sent.values()))
            sent.is_cancelled |= sent.is_added
            self._take(self.messager.cancel(sent.task.request_id, sent.task.attempt))

    def _settle(self, number: int) -> None:
        write = self.writes.pop(number)
        self.sent[write.request_id, write.attempt].open.discard(number)

    # -- what must hold

    def _take(self, outputs: Iterable[Output]) -> None:
        for output in outputs:
            if isinstance(output, Connect):
                self.connects.append(output)
            elif isinstance(output, Write):
                self._take_write(output)
            elif isinstance(output, Report):
                sent = self.sent[output.request_id, output.attempt]
                assert sent.report is None, "a second status"
                assert output.rank == 3
                sent.report = output
                is_late = sent.task.deadline_at is not None and sent.task.deadline_at <= self.now
                assert is_late or not sent.open, "a status while writes are under way"
            else:
                assert isinstance(output, AtRest)
                sent = self.sent[output.request_id, output.attempt]
                assert sent.report is not None, "at rest before its status"
                assert not sent.open
                assert not sent.is_at_rest
                sent.is_at_rest = True

    def _take_write(self, write: Write) -> None:
        sent = self.sent[write.request_id, write.attempt]
        task = sent.task
        assert sent.report is None, "a write after the status"
        assert write.peer == task.peer
        assert 0 <= write.layer < self.num_layers
        self.writes[write.number] = write
        sent.open.add(write.number)
        first = len(task.source_ids) - len(task.target_ids)
        for source, target in zip(write.source_ids, write.target_ids, strict=True):
            position = task.source_ids.index(source)
            assert position >= first, "decode has this block"
            assert task.target_ids[position - first] == target, "another position"
            assert (write.layer, position) not in sent.written, "written twice"
            sent.written.add((write.layer, position))
            needed = min((position + 1) * self.block_size, task.num_tokens)
            assert sent.computed[write.layer] >= needed, "written before it is computed"

    def _check_end(self, sent: Sent) -> None:
        assert sent.report is not None, "no status"
        assert not sent.open
        first = len(sent.task.source_ids) - len(sent.task.target_ids)
        due = {
            (x, y) for x in range(self.num_layers) for y in range(first, len(sent.task.source_ids))
        }
        if sent.report.error is None:
            assert sent.written == due, "done, and not all is written"
        elif sent.report.error == "cancelled":
            assert sent.is_cancelled


def run_seed(seed: int, num_requests: int) -> RankStory:
    """Run the story of a seed; what fails names it."""
    story = RankStory(Random(seed))
    try:
        story.run(num_requests)
    except AssertionError as error:
        error.add_note(f"seed {seed}, {num_requests} requests")
        raise
    return story


def test_each_layer_of_a_block_is_written_once_and_a_request_has_one_status() -> None:
    statuses = set()
    for seed in range(300):
        story = run_seed(seed, 6)
        statuses |= {sent.report.error for sent in story.sent.values() if sent.report}
    assert len(statuses) == 6  # none, write, connect, timeout, peer lost, cancelled


@pytest.mark.thorough
def test_the_same_of_a_hundred_thousand_actions() -> None:
    num_actions = seed = 0
    while num_actions < 100_000:
        num_actions += run_seed(1_000_000 + seed, 20).num_actions
        seed += 1

"""Short ways to tell a story to the messager of one rank: 4 tokens a block, 3 layers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.connections import Connect, ConnectionConfig, Connections, Peer
from kvsim.core.messager import AtRest, Messager, Output, Report, Write
from kvsim.core.send_task import OfSlot, OfStep, SendTask
from kvsim.core.signals import ChunkSignal, StepSignal

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.handoff import SendError

NUM_LAYERS = 3
BLOCK_SIZE = 4
PEER = Peer(instance=1, rank=0)
CONNECTIONS = ConnectionConfig(deadline_ns=100, first_pause_ns=10, longest_pause_ns=40)


def task(
    request_id: int = 0,
    *,
    attempt: int = 0,
    step: int | None = None,
    slot: int = 0,
    generation: int = 0,
    num_tokens: int = 10,
    cached: int = 0,
    peer: Peer = PEER,
    deadline_at: int | None = None,
) -> SendTask:
    """Return a task: source blocks 0, 1, ..., targets 100 higher, of a step or of a slot."""
    num_blocks = -(-num_tokens // BLOCK_SIZE)
    first = min(num_blocks, -(-cached // BLOCK_SIZE))
    return SendTask(
        request_id=request_id,
        attempt=attempt,
        peer=peer,
        source_ids=tuple(range(num_blocks)),
        target_ids=tuple(range(100 + first, 100 + num_blocks)),
        num_cached_tokens=cached,
        num_tokens=num_tokens,
        computed=OfSlot(slot, generation) if step is None else OfStep(step),
        deadline_at=deadline_at,
    )


class Rank:
    """A messager whose outputs are kept; it is connected to `PEER` unless told otherwise.

    Attributes
    ----------
    writes, reports
        All so far.
    """

    def __init__(
        self, *, is_connected: bool = True, config: ConnectionConfig = CONNECTIONS
    ) -> None:
        self.connections = Connections(config)
        self.messager = Messager(
            0, num_layers=NUM_LAYERS, block_size=BLOCK_SIZE, connections=self.connections
        )
        self.now = 0
        self.outputs: list[Output] = []
        if is_connected:
            (connect,) = self.connections.want(PEER, 0)
            assert isinstance(connect, Connect)
            self.connections.connected(PEER, connect.number, 0)

    def do(self, outputs: Iterable[Output]) -> list[Output]:
        """Keep what comes out, and return it."""
        new = list(outputs)
        self.outputs += new
        return new

    def add(self, each: SendTask) -> list[Output]:
        """Take a task."""
        return self.do(self.messager.add(each, self.now))

    def step(self, step: int, layer: int) -> list[Write]:
        """Signal a layer of a step; return the writes that follow."""
        self.do(self.messager.step_signal(StepSignal(step, layer), self.now))
        return self.new_writes()

    def chunk(
        self, first: int, count: int, layer: int, *, slot: int = 0, generation: int = 0
    ) -> list[Write]:
        """Signal a layer of a chunk; return the writes that follow."""
        signal = ChunkSignal(slot, generation, first, count, layer)
        before = len(self.outputs)
        self.do(self.messager.chunk_signal(signal, self.now))
        return [each for each in self.outputs[before:] if isinstance(each, Write)]

    def new_writes(self) -> list[Write]:
        """Return all writes so far that have not been answered."""
        return [each for each in self.writes if each.number in self.messager.open_write_numbers]

    def finish(self, writes: Iterable[Write] | None = None) -> None:
        """Let writes be done: all that are under way, or these."""
        for each in list(self.new_writes() if writes is None else writes):
            self.do(self.messager.written(each.number, self.now))

    @property
    def writes(self) -> list[Write]:
        """All writes so far."""
        return [each for each in self.outputs if isinstance(each, Write)]

    @property
    def connects(self) -> list[Connect]:
        """All attempts to connect so far."""
        return [each for each in self.outputs if isinstance(each, Connect)]

    @property
    def reports(self) -> list[tuple[int, int, SendError | None]]:
        """(request, attempt, error) of all reports so far."""
        reports = [each for each in self.outputs if isinstance(each, Report)]
        return [(each.request_id, each.attempt, each.error) for each in reports]

    @property
    def rests(self) -> list[tuple[int, int]]:
        """(request, attempt) of all that came to rest after their report."""
        rests = [each for each in self.outputs if isinstance(each, AtRest)]
        return [(each.request_id, each.attempt) for each in rests]

    def written(self, request_id: int = 0, attempt: int = 0) -> list[tuple[int, int, int]]:
        """Return (layer, source block, target block) of all writes of an attempt, sorted."""
        return sorted(
            (each.layer, source, target)
            for each in self.writes
            if (each.request_id, each.attempt) == (request_id, attempt)
            for source, target in zip(each.source_ids, each.target_ids, strict=True)
        )


def every(num_blocks: int, *, first: int = 0) -> list[tuple[int, int, int]]:
    """Return what must have been written in the end: each block of each layer once."""
    blocks = range(first, num_blocks)
    return [(layer, block, 100 + block) for layer in range(NUM_LAYERS) for block in blocks]

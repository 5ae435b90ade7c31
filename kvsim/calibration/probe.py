"""Copies of our own between those of a run: what a copy costs there, while it costs that.

What a copy takes on a rank depends on who else uses the cores and the caches: on the engine, on the
other ranks, on the rest of the machine, and it changes from second to second. So it is measured by
copies that nobody needs, of sizes that are ours to choose, on blocks that no request has: one
beside each copy of the run, before or behind it as a coin falls, since who comes second finds the
caches warm. The copies of the run itself are left out: they are what is to be predicted.
"""

from __future__ import annotations

from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.core.ops import Completion, Outcome, Place, Transfer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from kvsim.backends.setup import OpenBackend
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend
    from kvsim.types import OpId

GPU: Final = Place(instance=0, tier=0)
HOST: Final = Place(instance=0, tier=1)

MOST_BLOCKS: Final = 256  # the largest copies of the traces that come with kvsim have about 220

_FIRST_OP_ID: Final = 1 << 48
"""No run has as many ops, so the ids of both are apart."""


class Sample(NamedTuple):
    """One copy that was measured.

    `copy_ns` is how long the slowest rank copied, `wait_ns` what passed besides between its
    submission and its end on all ranks: the way there, the turns of steps, waits for a core.
    """

    is_in: bool
    num_blocks: int
    copy_ns: int
    wait_ns: int


class Prober:
    """Puts copies of its own into a run; a `kvsim.execution.Instrument`.

    Parameters
    ----------
    most_blocks
        Of a copy; so many blocks a tier are added to the pools.
    rng
        Draws the sizes and the blocks.
    same_way
        Whether a probe goes the way of the copy beside it. If not they go up and down in turn: so
        both are measured where few copies go up.
    """

    def __init__(self, *, most_blocks: int, rng: Random, same_way: bool) -> None:
        self._same_way = same_way
        self.num_extra_blocks = most_blocks
        self._rng = rng
        self._sizes = sizes(most_blocks)
        self._submitted: dict[OpId, tuple[Transfer, int]] = {}
        self._answers: list[tuple[Transfer, int, Completion]] = []
        self._opened: OpenBackend | None = None
        self._firsts: tuple[int, ...] = ()
        self._next_op_id = _FIRST_OP_ID
        self.probes: list[Transfer] = []
        self.turns_ns: list[int] = []
        """What the engine took for each turn, from the answers to its next wait for some."""

    def around(self, opened: OpenBackend, tier_blocks: tuple[int, ...]) -> Backend:
        """Return the backend for the engine; `tier_blocks` are what the engine has of the pools."""
        self._opened = opened
        self._firsts = tier_blocks
        return ProbingBackend(opened.backend, self)

    def comes_first(self) -> bool:
        """Return whether the next probe goes before the copy of the run."""
        return self._rng.random() < 0.5

    def next_probe(self, beside: Transfer, now: int) -> Transfer:
        """Return a copy that nobody needs: the same way, or one way and then the other."""
        op_id = self._next_op_id
        self._next_op_id += 1
        num_blocks = self._rng.choice(self._sizes)
        gpu_ids, cpu_ids = (
            tuple(first + at for at in self._rng.sample(range(self.num_extra_blocks), num_blocks))
            for first in self._firsts
        )
        is_up = beside.source == HOST if self._same_way else bool(op_id % 2)
        if is_up:
            probe = Transfer(op_id, HOST, GPU, cpu_ids, gpu_ids)
        else:
            probe = Transfer(op_id, GPU, HOST, gpu_ids, cpu_ids)
        self._submitted[op_id] = (probe, now)
        self.probes.append(probe)
        return probe

    def without_probes(self, answers: Sequence[Answer]) -> Sequence[Answer]:
        """Keep the answers that are ours, and return the others."""
        submitted = self._submitted
        if not submitted or not any(each.op_id in submitted for each in answers):
            return answers
        others: list[Answer] = []
        for answer in answers:
            if answer.op_id not in submitted:
                others.append(answer)
            elif isinstance(answer, Completion):
                self._answers.append((*submitted.pop(answer.op_id), answer))
        return others

    @property
    def samples(self) -> list[Sample]:
        """What was measured; to be asked after the run."""
        copy_ns = {} if self._opened is None else self._opened.copy_ns()
        return [
            Sample(
                probe.source == HOST,
                len(probe.source_ids),
                copy_ns[probe.op_id],
                answer.finished_at - submitted_at - copy_ns[probe.op_id],
            )
            for probe, submitted_at, answer in self._answers
            if answer.outcome is Outcome.DONE
        ]


class ProbingBackend:
    """Passes everything on, and puts probes in between; a `kvsim.core.ports.Backend` itself.

    Who calls it does not see the probes.
    """

    __slots__ = ("_answered_ns", "_inner", "_now", "_prober")

    def __init__(self, inner: Backend, prober: Prober) -> None:
        self._inner = inner
        self._prober = prober
        self._now = 0
        self._answered_ns: int | None = None

    def now(self) -> int:
        """Return the time in nanoseconds; begins a turn."""
        self._now = self._inner.now()
        return self._now

    def submit(self, command: Command) -> None:
        """Pass a command on, with a probe before or behind it if it is a copy."""
        if not isinstance(command, Transfer):
            self._inner.submit(command)
            return
        probe = self._prober.next_probe(command, self._now)
        commands = (probe, command) if self._prober.comes_first() else (command, probe)
        for each in commands:
            self._inner.submit(each)

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Wait for answers that are not those of probes."""
        if self._answered_ns is not None:
            self._prober.turns_ns.append(monotonic_ns() - self._answered_ns)
        while True:
            answers = self._inner.wait(until)
            others = self._prober.without_probes(answers)
            if others or not answers:
                self._answered_ns = monotonic_ns()
                return others

    def close(self) -> None:
        """Close the backend. Idempotent."""
        self._inner.close()


def sizes(most_blocks: int) -> tuple[int, ...]:
    """Return how many blocks a probe may have: 1, then each twice as many as the one before."""
    return tuple(1 << power for power in range(most_blocks.bit_length()))

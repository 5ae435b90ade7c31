"""Copies of our own between those of a run: what a copy costs there, while it costs that.

What a copy takes on a rank depends on who else uses the cores and the caches: on the engine, on the
other ranks, on the rest of the machine, and it changes from second to second. So it is measured by
copies that nobody needs, of sizes that are ours to choose, on blocks that no request has, one in
each turn in which the engine sends copies, before the first or behind the last of them, as a coin
falls: who comes second finds the caches warm, so both must come second equally often. The copies of
the run itself are left out: they are what is to be predicted.
"""

from __future__ import annotations

from enum import Enum, auto
from time import monotonic_ns
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.core.ops import Completion, Forward, Outcome, Place, Transfer

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


class When(Enum):
    """Where in a turn with copies the probe goes; NEVER: there is none to come."""

    NEVER = auto()
    FIRST = auto()
    LAST = auto()


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
    """

    def __init__(self, *, most_blocks: int, rng: Random) -> None:
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

    def next_probe(self, now: int) -> Transfer:
        """Return a copy that nobody needs: one way, then the other."""
        op_id = self._next_op_id
        self._next_op_id += 1
        num_blocks = self._rng.choice(self._sizes)
        gpu_ids, cpu_ids = (
            tuple(first + at for at in self._rng.sample(range(self.num_extra_blocks), num_blocks))
            for first in self._firsts
        )
        if op_id % 2:
            probe = Transfer(op_id, HOST, GPU, cpu_ids, gpu_ids)
        else:
            probe = Transfer(op_id, GPU, HOST, gpu_ids, cpu_ids)
        self._submitted[op_id] = (probe, now)
        self.probes.append(probe)
        return probe

    def draw(self) -> When:
        """Return where in a turn the probe goes."""
        return self._rng.choice((When.FIRST, When.LAST))

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

    __slots__ = ("_answered_ns", "_has_copy", "_inner", "_now", "_prober", "_when")

    def __init__(self, inner: Backend, prober: Prober) -> None:
        self._inner = inner
        self._prober = prober
        self._now = 0
        self._when = When.NEVER
        self._has_copy = False
        self._answered_ns: int | None = None

    def now(self) -> int:
        """Return the time in nanoseconds; begins a turn."""
        self._when = self._prober.draw()
        self._has_copy = False
        self._now = self._inner.now()
        return self._now

    def submit(self, command: Command) -> None:
        """Pass a command on, a probe before it if this is the place for one."""
        if isinstance(command, Transfer):
            if self._when is When.FIRST:
                self._probe()
            self._has_copy = True
        elif isinstance(command, Forward):
            self._probe_behind()
        self._inner.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        """Wait for answers that are not those of probes."""
        self._probe_behind()
        if self._answered_ns is not None:
            self._prober.turns_ns.append(monotonic_ns() - self._answered_ns)
        while True:
            answers = self._inner.wait(until)
            others = self._prober.without_probes(answers)
            if others or not answers:
                self._answered_ns = monotonic_ns()
                return others

    def _probe_behind(self) -> None:
        """Submit the probe that goes behind the copies of this turn, if there are some."""
        if self._has_copy and self._when is When.LAST:
            self._probe()

    def _probe(self) -> None:
        self._when = When.NEVER
        self._inner.submit(self._prober.next_probe(self._now))

    def close(self) -> None:
        """Close the backend. Idempotent."""
        self._inner.close()


def sizes(most_blocks: int) -> tuple[int, ...]:
    """Return how many blocks a probe may have: 1, then each twice as many as the one before."""
    return tuple(1 << power for power in range(most_blocks.bit_length()))

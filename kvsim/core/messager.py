"""What one rank of a prefill instance sends when: writes behind the layers that they carry.

Sans-IO: signals, tasks and results go in; connections to make, writes and reports come out. A task
is one attempt of a request on this rank. For each layer there is one number, up to which position
of the block table it was written, and one, up to which it is computed; a write carries what lies
between. So a block of a layer is written once, whatever order tasks, signals and connections come
in, whatever is computed in whatever chunks. Tasks know nothing of each other: one that fails takes
no other with it.

Both generations of signals drive the same tasks. Per step: a task names the step that computes it,
and a signal says which layer of which step is done. Per chunk: a task names a use of a batch slot,
and a signal says up to which token a layer is there.

A task has one terminal report, when its last write has settled; or at its deadline, and then one
`AtRest` follows when the last write has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvsim.core.connections import Connect, GaveUp, Link
from kvsim.core.handoff import SendError
from kvsim.core.send_task import OfSlot, OfStep, first_position
from kvsim.core.signals import (
    GENERATION_MODULUS,
    STEP_MODULUS,
    ChunkSignal,
    StepSignal,
    serial_distance,
)
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.connections import ConnectionOutput, Connections, Peer
    from kvsim.core.send_task import SendTask
    from kvsim.types import BlockId, RequestId

    TaskKey: TypeAlias = tuple[RequestId, int]


class Write(NamedTuple):
    """Write one layer of these blocks to a peer. `number` names it in the result."""

    number: int
    peer: Peer
    request_id: RequestId
    attempt: int
    layer: int
    source_ids: tuple[BlockId, ...]
    target_ids: tuple[BlockId, ...]


class Report(NamedTuple):
    """The one terminal status of a task on this rank; `error` None: all is written."""

    request_id: RequestId
    attempt: int
    rank: int
    error: SendError | None
    reason: str = ""


class AtRest(NamedTuple):
    """After a report of TIMEOUT: no write of the task is under way any more."""

    request_id: RequestId
    attempt: int
    rank: int


Output: TypeAlias = Connect | Write | Report | AtRest


class _Task:
    """A task under way: for each layer, up to where it is written and up to where computed."""

    __slots__ = (
        "computed",
        "error",
        "first",
        "is_reported",
        "open_writes",
        "reason",
        "task",
        "written",
    )

    def __init__(self, task: SendTask, first: int, num_layers: int) -> None:
        self.task = task
        self.first = first  # the position of target_ids[0]
        self.written = [first] * num_layers
        self.computed = [0] * num_layers
        self.open_writes: set[int] = set()
        self.error: SendError | None = None
        self.reason = ""
        self.is_reported = False


class Messager:
    """The sends of one rank.

    Parameters
    ----------
    rank
        Named in reports.
    num_layers, block_size
        Of the model, and tokens a block.
    connections
        To the ranks of decode instances. The caller carries out what `Connect` says and tells this
        object, not that one, what came of it.
    """

    def __init__(
        self, rank: int, *, num_layers: int, block_size: int, connections: Connections
    ) -> None:
        self._rank = rank
        self._num_layers = num_layers
        self._block_size = block_size
        self._connections = connections
        self._tasks: dict[TaskKey, _Task] = {}
        self._writes: dict[int, _Task] = {}
        self._next_write = 0
        # Steps are counted on without a wrap from the first signal.
        self._step: int | None = None
        self._layer = -1
        # The newest use of each slot: its generation, the layers computed, and its task.
        self._slots: dict[int, tuple[int, list[int]]] = {}
        self._slot_tasks: dict[OfSlot, _Task] = {}

    @property
    def num_open_tasks(self) -> int:
        """Tasks that have not come to rest."""
        return len(self._tasks)

    @property
    def open_write_numbers(self) -> frozenset[int]:
        """Writes whose result is not known."""
        return frozenset(self._writes)

    @property
    def next_wakeup_at(self) -> int | None:
        """When `wake` must be called, if nothing comes before."""
        times = [each.task.deadline_at for each in self._tasks.values() if not each.is_reported]
        return min(
            (at for at in (*times, self._connections.next_wakeup_at) if at is not None),
            default=None,
        )

    # -- tasks

    def add(self, task: SendTask, now: int) -> list[Output]:
        """Take a task; what is computed already is written at once.

        Raises
        ------
        MisuseError
            If its numbers do not fit each other, or the attempt is known. Nothing has changed then.
        """
        key = (task.request_id, task.attempt)
        if key in self._tasks:
            raise MisuseError(f"attempt {task.attempt} of request {task.request_id} is known")
        state = _Task(task, first_position(task, self._block_size), self._num_layers)
        self._tasks[key] = state
        if isinstance(task.computed, OfSlot):
            self._slot_tasks[task.computed] = state
            generation, ends = self._slots.get(task.computed.slot, (-1, []))
            if generation == task.computed.generation:
                state.computed[:] = ends
        else:
            self._note_step(state, task.computed)
        return self._go_on(state, now)

    def cancel(self, request_id: RequestId, attempt: int) -> list[Output]:
        """Write nothing more of an attempt; one that is not known is ignored."""
        state = self._tasks.get((request_id, attempt))
        return [] if state is None else self._fail(state, SendError.CANCELLED, "called off")

    # -- signals

    def step_signal(self, signal: StepSignal, now: int) -> list[Output]:
        """Take what compute says; what was said before, or comes late, changes nothing."""
        if self._step is not None:
            ahead = serial_distance(signal.step, self._step, STEP_MODULUS)
            if ahead < 0 or (not ahead and signal.layer <= self._layer):
                return []
        self._step, self._layer = signal.step, signal.layer
        outputs: list[Output] = []
        for state in list(self._tasks.values()):
            if isinstance(state.task.computed, OfStep):
                self._note_step(state, state.task.computed)
                outputs += self._go_on(state, now)
        return outputs

    def chunk_signal(self, signal: ChunkSignal, now: int) -> list[Output]:
        """Take what compute says of a batch slot.

        It is kept if its task is not known yet; what belongs to an earlier use of the slot is
        dropped.
        """
        generation, ends = self._slots.get(signal.slot, (signal.generation, []))
        ahead = serial_distance(signal.generation, generation, GENERATION_MODULUS)
        if ahead < 0:
            return []
        if ahead or not ends:
            ends = [0] * self._num_layers
            self._slots[signal.slot] = (signal.generation, ends)
        for layer in range(min(signal.layer + 1, self._num_layers)):
            ends[layer] = max(ends[layer], signal.end_token)
        state = self._slot_tasks.get(OfSlot(signal.slot, signal.generation))
        if state is None:
            return []
        state.computed[:] = ends
        return self._go_on(state, now)

    # -- results

    def written(self, number: int, now: int) -> list[Output]:
        """Take note that a write is done; one that is not under way is ignored."""
        state = self._writes.pop(number, None)
        if state is None:
            return []
        state.open_writes.discard(number)
        return self._go_on(state, now)

    def write_failed(self, number: int, reason: str) -> list[Output]:
        """Take note that a write is lost; one that is not under way is ignored."""
        state = self._writes.pop(number, None)
        if state is None:
            return []
        state.open_writes.discard(number)
        return self._fail(state, SendError.WRITE, reason)

    def connected(self, peer: Peer, number: int, now: int) -> list[Output]:
        """Take note that an attempt to connect succeeded."""
        outputs = self._take(self._connections.connected(peer, number, now))
        for state in list(self._tasks.values()):
            if state.task.peer == peer:
                outputs += self._go_on(state, now)
        return outputs

    def refused(self, peer: Peer, number: int, reason: str, now: int) -> list[Output]:
        """Take note that an attempt to connect failed."""
        return self._take(self._connections.refused(peer, number, reason, now))

    def peer_lost(self, peer: Peer, reason: str) -> list[Output]:
        """Take note that a connection broke: the transport lets no write to it go on."""
        return self._take(self._connections.lost(peer, reason))

    def heard(self, peer: Peer, now: int) -> None:
        """Take note of a sign of life of a peer."""
        self._connections.heard(peer, now)

    def wake(self, now: int) -> list[Output]:
        """Do what is due by `now`: attempts to connect, deadlines."""
        outputs = self._take(self._connections.wake(now))
        for state in list(self._tasks.values()):
            deadline_at = state.task.deadline_at
            if deadline_at is not None and deadline_at <= now and not state.is_reported:
                if state.error is None:
                    state.error = SendError.TIMEOUT
                    state.reason = f"not written by its deadline, {deadline_at} ns"
                outputs += self._report(state)
                outputs += self._rest(state)
        return outputs

    # -- how a task goes on

    def _note_step(self, state: _Task, computed: OfStep) -> None:
        """Work out from the last signal which layers of a task are computed."""
        if self._step is None:
            return
        ahead = serial_distance(self._step, computed.step, STEP_MODULUS)
        if ahead >= 0:
            num_layers = self._num_layers if ahead else min(self._layer + 1, self._num_layers)
            state.computed[:num_layers] = [state.task.num_tokens] * num_layers

    def _go_on(self, state: _Task, now: int) -> list[Output]:
        """Write what is computed and was not written; report the task if it is through."""
        task = state.task
        if state.error is not None:
            return self._rest(state)
        if min(state.written) == len(task.source_ids):
            return [] if state.open_writes else self._rest(state)
        outputs = self._take(self._connections.want(task.peer, now))
        if self._connections.link(task.peer) is not Link.UP:
            return outputs
        for layer, tokens in enumerate(state.computed):
            start = state.written[layer]
            is_all = tokens >= task.num_tokens
            end = len(task.source_ids) if is_all else tokens // self._block_size
            if end > start:
                outputs.append(self._write(state, layer, start, end))
        return outputs

    def _write(self, state: _Task, layer: int, start: int, end: int) -> Write:
        task = state.task
        self._next_write = number = self._next_write + 1
        self._writes[number] = state
        state.open_writes.add(number)
        state.written[layer] = end
        return Write(
            number,
            task.peer,
            task.request_id,
            task.attempt,
            layer,
            task.source_ids[start:end],
            task.target_ids[start - state.first : end - state.first],
        )

    def _fail(self, state: _Task, error: SendError, reason: str) -> list[Output]:
        """Let a task end for its first cause, once its writes have settled."""
        if state.error is None:
            state.error, state.reason = error, reason
        return self._rest(state)

    def _rest(self, state: _Task) -> list[Output]:
        """Let go of a task that has ended and has no write under way."""
        task = state.task
        if state.open_writes or (task.request_id, task.attempt) not in self._tasks:
            return []
        del self._tasks[task.request_id, task.attempt]
        if isinstance(task.computed, OfSlot):
            self._slot_tasks.pop(task.computed, None)
        if state.is_reported:
            return [AtRest(task.request_id, task.attempt, self._rank)]
        return self._report(state)

    def _report(self, state: _Task) -> list[Output]:
        state.is_reported = True
        task = state.task
        return [Report(task.request_id, task.attempt, self._rank, state.error, state.reason)]

    def _take(self, outputs: Iterable[ConnectionOutput]) -> list[Output]:
        """Pass on attempts to connect; let the tasks of peers that are given up fail."""
        result: list[Output] = []
        for output in outputs:
            if not isinstance(output, GaveUp):
                result.append(output)
                continue
            error = SendError.PEER_LOST if output.is_lost else SendError.CONNECT
            for state in list(self._tasks.values()):
                if state.task.peer == output.peer:
                    for number in state.open_writes:
                        del self._writes[number]
                    state.open_writes.clear()
                    result += self._fail(state, error, output.reason)
        return result

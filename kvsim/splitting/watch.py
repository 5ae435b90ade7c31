"""What passes between instances, as the engine loop sees it: sends, pieces of prompts, steps."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.core.ops import Completion, Forward, Outcome, Transfer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.types import OpId, RequestId


class SendRecord(NamedTuple):
    """Blocks that went, or should have gone, from a prefill to a decode instance.

    Times are nanoseconds. `outcome` is a `kvsim.core.ops.Outcome` value.
    """

    op_id: OpId
    request_id: RequestId
    attempt: int
    source: int
    target: int
    num_blocks: int
    issued_at: int
    started_at: int
    finished_at: int
    outcome: str
    reason: str


class PieceRecord(NamedTuple):
    """A piece of a prompt, and the Forward that computed it."""

    op_id: OpId
    request_id: RequestId
    attempt: int
    instance: int
    num_tokens: int
    started_at: int
    finished_at: int
    outcome: str


class SplitWatch:
    """A `TurnObserver` that keeps what a split run did, and looks whether decode started early.

    It knows nothing of the scheduler: it sees the commands and the answers, as a recording does.

    Parameters
    ----------
    tell
        Called now and then, so that progress can be shown; None: nobody asks.

    Attributes
    ----------
    sends, pieces
        In the order in which they were answered.
    num_early_starts
        Requests that were in a decoding batch when a send of the same attempt was still open, had
        failed, or had been ordered in the same turn.
    last_at
        The latest finish of an answer.
    """

    def __init__(self, tell: Callable[[], None] | None = None) -> None:
        self.sends: list[SendRecord] = []
        self.pieces: list[PieceRecord] = []
        self.num_early_starts = 0
        self.last_at = 0
        self._tell = tell
        self._open_sends: dict[OpId, tuple[int, Transfer]] = {}
        self._open_forwards: dict[OpId, Forward] = {}
        # By (request, attempt): sends that are not DONE.
        self._missing: dict[tuple[RequestId, int], int] = {}

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        """Take note of one turn."""
        for command in commands:
            if isinstance(command, Transfer):
                if command.source.instance != command.target.instance:
                    self._open_sends[command.op_id] = now, command
                    for pair in command.attempts:
                        self._missing[pair] = self._missing.get(pair, 0) + 1
            elif isinstance(command, Forward) and command.prefill:
                self._open_forwards[command.op_id] = command
        for command in commands:
            if isinstance(command, Forward):
                for member in command.joined:
                    if self._missing.get((member.request_id, member.attempt)):
                        self.num_early_starts += 1
        for answer in answers:
            self.last_at = max(self.last_at, answer.finished_at)
            if isinstance(answer, Completion):
                self._take(answer)
        if self._tell is not None:
            self._tell()

    def _take(self, answer: Completion) -> None:
        forward = self._open_forwards.pop(answer.op_id, None)
        if forward is not None:
            self.pieces += [
                PieceRecord(
                    answer.op_id,
                    piece.request_id,
                    piece.attempt,
                    forward.instance,
                    piece.num_tokens,
                    answer.started_at,
                    answer.finished_at,
                    answer.outcome.value,
                )
                for piece in forward.prefill
            ]
            return
        known = self._open_sends.pop(answer.op_id, None)
        if known is None:
            return
        issued_at, send = known
        for pair in send.attempts:
            if answer.outcome is Outcome.DONE:
                self._missing[pair] -= 1
            self.sends.append(
                SendRecord(
                    answer.op_id,
                    *pair,
                    send.source.instance,
                    send.target.instance,
                    len(send.source_ids),
                    issued_at,
                    answer.started_at,
                    answer.finished_at,
                    answer.outcome.value,
                    answer.reason,
                )
            )

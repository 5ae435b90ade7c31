"""Run sessions side by side: who sends the next prompt, and when."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from kvsim.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.trace.synthesis.prompts import Prompt, Writer
    from kvsim.trace.synthesis.starts import Starts
    from kvsim.types import Rng

_MS_NS: Final = 10**6


class Turn(NamedTuple):
    """One request of a session, and what follows.

    Parameters
    ----------
    prompt
        All of it, with what the session had before.
    num_output_tokens
        Of the answer.
    answer_ms
        From the arrival of the request to the end of the answer.
    pause_ms
        From there, and from the end of all `helpers`, to the next turn; None: this was the last.
    helpers
        Sessions that begin when the answer has ended.
    """

    prompt: Prompt
    num_output_tokens: int
    answer_ms: int
    pause_ms: int | None
    helpers: tuple[Iterator[Turn], ...] = ()


Session: TypeAlias = "Iterator[Turn]"


class Workload(Protocol):
    """What sessions ask for. A frozen dataclass of numbers, so that it can be named on one line."""

    @property
    def starts(self) -> Starts:
        """When sessions begin if nothing else is said."""

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Session]:
        """Return what begins a session each time it is called.

        A session draws from `rng` as its turns are asked for, in the order of their arrival.
        """


@dataclass(slots=True, kw_only=True)
class _Live:
    """A session under way: its next turn comes after its helpers' end and a pause."""

    name: str
    turns: Session
    parent: _Live | None = None
    num_helpers: int = 0
    num_named: int = 0
    resumes_ms: int = 0
    pause_ms: int | None = None


def draw_requests(
    workload: Workload, num_requests: int, *, starts: Starts, writer: Writer, rng: Rng
) -> list[Request]:
    """Return the first requests of endless sessions; at one time the one that was due first."""
    begin = workload.opener(writer, rng)
    starts_ms = starts.times_ms(rng)
    next_start_ms = next(starts_ms)
    due: list[tuple[int, int, _Live]] = []  # when, in which order it was put here: a heap
    requests: list[Request] = []
    num_sessions = num_due = 0
    while len(requests) < num_requests:
        if due and due[0][0] <= next_start_ms:
            at_ms, _, live = heappop(due)
        else:
            at_ms, live = next_start_ms, _Live(name=f"s{num_sessions}", turns=begin())
            num_sessions += 1
            next_start_ms = next(starts_ms)
        turn = next(live.turns)
        requests.append(_request(len(requests), at_ms, live.name, turn))
        for when_ms, ready in _what_follows(live, turn, at_ms + turn.answer_ms):
            heappush(due, (when_ms, num_due, ready))
            num_due += 1
    return requests


def _what_follows(live: _Live, turn: Turn, ended_ms: int) -> Iterator[tuple[int, _Live]]:
    """Yield the sessions that go on, and when."""
    live.pause_ms, live.resumes_ms = turn.pause_ms, ended_ms
    live.num_helpers = len(turn.helpers)
    for turns in turn.helpers:
        live.num_named += 1
        yield ended_ms, _Live(name=f"{live.name}.{live.num_named}", turns=turns, parent=live)
    done: _Live | None = live
    while done is not None and done.num_helpers == 0:
        if done.pause_ms is not None:
            yield done.resumes_ms + done.pause_ms, done
            return
        ended_ms, done = done.resumes_ms, done.parent
        if done is not None:
            done.num_helpers -= 1
            done.resumes_ms = max(done.resumes_ms, ended_ms)


def _request(request_id: int, at_ms: int, session_id: str, turn: Turn) -> Request:
    return Request(
        request_id=request_id,
        arrived_at=at_ms * _MS_NS,
        block_keys=tuple(turn.prompt.keys),
        num_input_tokens=turn.prompt.num_tokens,
        num_output_tokens=turn.num_output_tokens,
        session_id=session_id,
    )

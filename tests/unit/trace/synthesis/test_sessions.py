from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING

from kvsim.trace.synthesis.prompts import Writer
from kvsim.trace.synthesis.sessions import Turn, draw_requests
from kvsim.trace.synthesis.starts import Poisson, Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.types import Request, Rng

# answer ms, pause ms or None, helpers
Script = list[tuple[int, int | None, "list[Script]"]]


@dataclass(frozen=True)
class Scripted:
    """Every session does the same."""

    script: Script
    gap_s: float
    starts: Starts = field(default_factory=Starts)

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Iterator[Turn]]:
        assert rng

        def turns(script: Script) -> Iterator[Turn]:
            for answer_ms, pause_ms, helpers in script:
                begun = tuple(turns(each) for each in helpers)
                yield Turn(writer.add_own(writer.empty, 5), 1, answer_ms, pause_ms, begun)

        return lambda: turns(self.script)


def seen(requests: list[Request]) -> list[tuple[int, str | None]]:
    return [(request.arrived_at // 10**6, request.session_id) for request in requests]


def drawn(script: Script, num: int, gap_s: float = 1e6) -> list[tuple[int, str | None]]:
    starts = Starts(process=Poisson(gap_s=gap_s))
    workload = Scripted(script, gap_s)
    return seen(draw_requests(workload, num, starts=starts, writer=Writer(10), rng=Random(1)))


def test_a_turn_comes_a_pause_after_the_answer() -> None:
    assert drawn([(100, 20, []), (50, 7, []), (1, None, [])], 3) == [
        (0, "s0"),
        (120, "s0"),  # 0 + 100 + 20
        (177, "s0"),  # 120 + 50 + 7
    ]


def test_a_session_goes_on_when_its_last_helper_has_ended() -> None:
    slow: Script = [(300, None, [])]
    quick: Script = [(10, 5, []), (10, None, [])]
    assert drawn([(100, 20, [slow, quick]), (1, None, [])], 5) == [
        (0, "s0"),
        (100, "s0.1"),  # both begin when the answer has ended
        (100, "s0.2"),
        (115, "s0.2"),  # 100 + 10 + 5; ends at 125
        (420, "s0"),  # the slow one ends at 400, then the pause
    ]


def test_helpers_may_have_helpers_and_a_last_turn_too() -> None:
    inner: Script = [(30, None, [])]
    outer: Script = [(10, None, [inner])]  # ends with its helper: 100 + 10 + 30
    assert drawn([(100, 20, [outer]), (1, None, [])], 4) == [
        (0, "s0"),
        (100, "s0.1"),
        (110, "s0.1.1"),
        (160, "s0"),  # 140 + 20
    ]


def test_what_is_due_comes_before_a_session_that_begins_at_that_time() -> None:
    # all sessions begin at 0; the second turn is due at 0 too, and was there first
    assert drawn([(0, 0, []), (0, None, [])], 4, gap_s=0) == [
        (0, "s0"),
        (0, "s0"),
        (0, "s1"),
        (0, "s1"),
    ]

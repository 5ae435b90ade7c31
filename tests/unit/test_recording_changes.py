"""One thing in a recording changed, and its checksums put right: the rerun tells where."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from kvsim.core.ops import Command, Completion, Gate, Member, Outcome, Place, Slice
from kvsim.events import (
    AttemptEnded,
    BlocksDuplicated,
    CacheCleared,
    EndReason,
    Event,
    RemoveCause,
    RequestAdmitted,
)
from kvsim.policies.rank import RankPolicy
from kvsim.recording import rerun
from tests.unit.recordings import BUSY, MS_NS, busy_trace, contents, record, rewrite

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from kvsim.backends.turn_codec import Turn
    from kvsim.core.ports import AccessInfo, PolicyContext
    from kvsim.types import NodeId


@pytest.fixture(scope="module")
def some(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording of a run in which much goes wrong; nobody may change it."""
    path = tmp_path_factory.mktemp("some") / "some.turns"
    record(path, busy_trace(60), BUSY)
    return path


def copy(path: Path, folder: Path) -> Path:
    (folder / "copy.turns").write_bytes(path.read_bytes())
    return folder / "copy.turns"


class ByDice(RankPolicy):
    """Ranks blocks by numbers that it draws."""

    def __init__(self, context: PolicyContext) -> None:
        super().__init__(context)
        self.rng = context.rng

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        for node in nodes:
            self.rank[node] = self.rng.randrange(1000)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        self.on_insert(nodes, depth, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        pass


def at(turns: Sequence[Turn], part: str, kind: type) -> tuple[int, int]:
    """Return (turn, place in its part) of the value of a kind that is in the middle of them."""
    found = [
        (index, place)
        for index, turn in enumerate(turns)
        for place, value in enumerate(getattr(turn, part))
        if type(value) is kind
    ]
    return found[len(found) // 2]


def with_part(turns: Sequence[Turn], index: int, part: str, values: Iterable[object]) -> list[Turn]:
    """Return the turns with other values in a part of one of them."""
    turn = turns[index]._replace(**{part: tuple(values)})  # type: ignore[arg-type]
    return [*turns[:index], turn, *turns[index + 1 :]]


SAMPLES = {
    "prefill": Slice(0, 0, 0, 4, (0,)),
    "joined": Member(0, 0, 4, (0,)),
    "grown": (0, (0,)),
    "attempts": (0, 0),
    "hit_keys": (),
    "keys": "k",
}
"""One more for a tuple, by its name; for others a number will do."""


def another(name: str, value: object) -> object:
    """Return a value for the field that differs from `value`."""
    match value:
        case Gate():
            return Gate.OP if value is Gate.LAYER else Gate.LAYER
        case EndReason():
            return EndReason.CANCELLED if value is EndReason.FINISHED else EndReason.FINISHED
        case RemoveCause():
            return RemoveCause.EVICTED if value is RemoveCause.DEMOTED else RemoveCause.DEMOTED
        case Place():
            return replace(value, instance=value.instance + 1)
        case bool():
            return not value
        case int():
            return value + 1
        case str():
            return value + "x"
        case tuple():
            return (*value, SAMPLES.get(name, 0))
    return 5  # a deadline where there was none


ABSENT = {BlocksDuplicated, CacheCleared}
"""Kinds that the recorded run has none of. That they are read as written is tested elsewhere."""


@pytest.mark.parametrize(
    "kind", [kind for kind in (*get_args(Command), *get_args(Event)) if kind not in ABSENT]
)
def test_a_command_or_event_changed_in_any_field_is_a_difference(
    some: Path, tmp_path: Path, kind: type
) -> None:
    part = "commands" if kind in get_args(Command) else "events"
    turns = contents(some)[2]
    index, place = at(turns, part, kind)
    values = getattr(turns[index], part)
    for name, value in values[place]._asdict().items():
        other = values[place]._replace(**{name: another(name, value)})
        path = copy(some, tmp_path)
        rewrite(
            path,
            turns=with_part(turns, index, part, [*values[:place], other, *values[place + 1 :]]),
        )
        difference = rerun(path).difference or ""
        where = f"turn {index}: {part[:-1]} {place}: {kind.__name__}.{name}"
        assert difference.startswith(where), difference


@pytest.mark.parametrize("part", ["commands", "events"])
def test_a_command_or_event_left_out_or_put_in_or_moved_is_a_difference(
    some: Path, tmp_path: Path, part: str
) -> None:
    turns = contents(some)[2]
    index = next(i for i, turn in enumerate(turns) if len(set(getattr(turn, part))) >= 2)
    one, two, *rest = getattr(turns[index], part)
    for values in ([two, *rest], [one, *rest], [one, one, two, *rest], [two, one, *rest]):
        rewrite(copy(some, tmp_path), turns=with_part(turns, index, part, values))
        difference = rerun(tmp_path / "copy.turns").difference or ""
        assert difference.startswith(f"turn {index}: {part[:-1]} "), difference


def last_step(turns: Sequence[Turn]) -> tuple[int, Completion]:
    """Return a turn whose one answer, to a Forward, brings a request to its end; and the answer."""
    for index, turn in enumerate(turns):
        for event in turn.events:
            if isinstance(event, AttemptEnded) and event.reason is EndReason.FINISHED:
                match turn.answers:
                    case (Completion() as answer,):
                        return index, answer
    raise AssertionError("no request finishes")


@pytest.mark.parametrize(
    "change",
    [
        {"op_id": 10**6},
        {"outcome": Outcome.FAILED},
        {"outcome": Outcome.CANCELLED},
        {"outcome": Outcome.TIMED_OUT},
        {"finished_at": 1},
    ],
)
def test_an_answer_changed_in_what_the_core_reads_is_a_difference(
    some: Path, tmp_path: Path, change: dict[str, Any]
) -> None:
    turns = contents(some)[2]
    index, answer = last_step(turns)
    other = answer._replace(**change)
    rewrite(copy(some, tmp_path), turns=with_part(turns, index, "answers", [other]))
    again = rerun(tmp_path / "copy.turns")
    assert (again.difference or "").startswith(f"turn {index}"), again


def test_a_step_less_is_a_difference(some: Path, tmp_path: Path) -> None:
    turns = contents(some)[2]
    index, answer = next(
        (index, turn.answers[0])
        for index, turn in enumerate(turns)
        if turn.answers
        and isinstance(turn.answers[0], Completion)
        and turn.answers[0].steps_done > 2
    )
    other = answer._replace(steps_done=answer.steps_done - 1)
    answers = [other, *(turns[index].answers or ())[1:]]
    rewrite(copy(some, tmp_path), turns=with_part(turns, index, "answers", answers))
    assert (rerun(tmp_path / "copy.turns").difference or "").startswith("turn ")


def test_answers_in_another_order_or_number_are_a_difference(some: Path, tmp_path: Path) -> None:
    turns = contents(some)[2]
    index = next(i for i, turn in enumerate(turns) if len(turn.answers or ()) >= 2)
    one, two, *rest = turns[index].answers or ()
    for answers in ([two, one, *rest], [one, *rest], [], [one, one, two, *rest]):
        rewrite(copy(some, tmp_path), turns=with_part(turns, index, "answers", answers))
        again = rerun(tmp_path / "copy.turns")
        assert (again.difference or "").startswith("turn "), answers


def test_what_no_decision_depends_on_is_kept_by_the_checksums_alone(
    some: Path, tmp_path: Path
) -> None:
    # The core never reads when an op began or why it failed, so a file that was written anew with
    # another time is another recording of the same decisions; changed bytes are refused.
    turns = contents(some)[2]
    index, answer = last_step(turns)
    other = answer._replace(started_at=answer.finished_at - 1)
    rewrite(copy(some, tmp_path), turns=with_part(turns, index, "answers", [other]))
    assert rerun(tmp_path / "copy.turns").identical


def test_another_time_is_a_difference(some: Path, tmp_path: Path) -> None:
    turns = contents(some)[2]
    index, _ = at(turns, "events", RequestAdmitted)
    later = turns[index]._replace(now=turns[index].now + 1)
    rewrite(copy(some, tmp_path), turns=[*turns[:index], later, *turns[index + 1 :]])
    again = rerun(tmp_path / "copy.turns")
    assert (again.difference or "").startswith(f"turn {index}: ")


def test_turns_left_out_or_put_in_are_a_difference(some: Path, tmp_path: Path) -> None:
    turns = contents(some)[2]
    for others in (turns[:-1], turns[1:], [*turns, turns[-1]], [*turns[:9], *turns[10:]], []):
        rewrite(copy(some, tmp_path), turns=others)
        again = rerun(tmp_path / "copy.turns")
        assert (again.difference or "").startswith("turn "), len(others)
        assert again.turns == len(others)


def test_a_run_that_stops_too_early_or_too_late_is_told(some: Path, tmp_path: Path) -> None:
    turns = contents(some)[2]
    rewrite(copy(some, tmp_path), turns=turns[:-1])
    assert rerun(tmp_path / "copy.turns").difference == (
        f"turn {len(turns) - 2}: recorded the run ended well, now work is left"
    )
    rewrite(copy(some, tmp_path), turns=[*turns, turns[-1]])
    assert rerun(tmp_path / "copy.turns").difference == (
        f"turn {len(turns)}: recorded, but now no work was left before it"
    )


@pytest.mark.parametrize(
    "change",
    [
        {"gpu_blocks": 13},
        {"cpu_blocks": 11},
        {"token_budget": 17},
        {"max_running": 2},
        {"decode_reserve_blocks": 1},
        {"swap_batch_blocks": 3},
        {"transfer_timeout_ns": 3 * MS_NS},
        {"swap_in": "wait"},
        {"policy": "fifo"},
    ],
)
def test_another_setting_is_a_difference(
    some: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    header = contents(some)[0]
    settings: dict[str, object] = {**header.settings, **change}
    rewrite(copy(some, tmp_path), header=header._replace(settings=settings))  # type: ignore[arg-type]
    again = rerun(tmp_path / "copy.turns")
    assert (again.difference or "").startswith("turn "), again


def test_another_seed_is_a_difference_for_a_policy_that_draws(tmp_path: Path) -> None:
    path = tmp_path / "dice.turns"
    record(path, busy_trace(40), BUSY, policy=ByDice)
    assert rerun(path, policy=ByDice).identical
    header = contents(path)[0]
    rewrite(path, header=header._replace(settings={**header.settings, "seed": 2}))
    again = rerun(path, policy=ByDice)
    assert (again.difference or "").startswith("turn ")


def test_another_request_is_a_difference(some: Path, tmp_path: Path) -> None:
    requests = list(contents(some)[1])
    for change in (
        {"num_output_tokens": requests[5].num_output_tokens + 9},
        {"cancelled_at": requests[5].arrived_at + 1},
        {"block_keys": (*requests[5].block_keys[:-1], "other")},
    ):
        told = [*requests[:5], replace(requests[5], **change), *requests[6:]]
        rewrite(copy(some, tmp_path), requests=told)
        assert not rerun(tmp_path / "copy.turns").identical, change
    late = replace(requests[-1], arrived_at=requests[-1].arrived_at + 1000 * MS_NS)
    rewrite(copy(some, tmp_path), requests=[*requests[:-1], late])
    assert not rerun(tmp_path / "copy.turns").identical

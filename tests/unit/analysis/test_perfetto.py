from __future__ import annotations

import json
from decimal import Decimal
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.analysis.perfetto import op_events
from kvsim.analysis.timeline import TurnRecord
from kvsim.core.ops import Completion, Outcome, Place, Transfer
from kvsim.errors import UserError
from kvsim.recording import rerun
from tests.trace_events import check_timeline, read_timeline
from tests.unit.stories import back_from_below, three_prompts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.trace_events import Event


def timeline(result: kvsim.ReplayResult, folder: Path) -> list[Event]:
    result.perfetto(folder / "run.json")
    return read_timeline((folder / "run.json").read_text(encoding="utf-8"))


@pytest.fixture
def story(tmp_path: Path) -> list[Event]:
    """Return the timeline of three steps, a copy down and a copy up, on the 8 ranks of a host."""
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    return timeline(result, tmp_path)


def test_a_timeline_is_what_the_format_asks_for(story: list[Event]) -> None:
    check_timeline(story)


def test_there_is_a_row_for_each_rank_and_each_direction(story: list[Event]) -> None:
    rows = [event["args"]["name"] for event in story if event["name"] == "thread_name"]
    ranks = [f"rank {rank}" for rank in range(8)]
    assert rows == [*ranks, "instance 0 cpu -> gpu", "instance 0 gpu -> cpu"]


def test_every_step_is_a_slice_on_each_rank_and_every_swap_one_on_its_link(
    story: list[Event],
) -> None:
    slices = [event for event in story if event["ph"] == "X"]
    steps = [event for event in slices if event["pid"] == 10]
    assert len(steps) == 3 * 8
    # The third prompt is found below as a whole: its last token is computed once more.
    names = [event["name"] for event in steps if event["tid"] == 1]
    assert names == ["prefill 12", "prefill 12", "prefill 1"]
    links = [(event["tid"], event["name"]) for event in slices if event["pid"] == 2]
    assert links == [(2, "3 blocks"), (1, "3 blocks")]  # first down, then up


def test_an_arrow_leads_from_a_copy_to_the_step_that_waits_for_it(story: list[Event]) -> None:
    arrows = [(event["ph"], event["pid"]) for event in story if event["ph"] in "sf"]
    assert arrows == [("s", 2), ("f", 10)]


def test_a_request_is_a_span_with_what_it_did(story: list[Event]) -> None:
    spans = [(e["ph"], e["name"]) for e in story if e["ph"] in "be" and e["id"] == "1"]
    # It waits for the copy down; it makes one token, so it never decodes.
    assert spans == [
        ("b", "request 1"), ("b", "queued"), ("e", "queued"), ("b", "prefill"), ("e", "prefill"),
        ("e", "request 1"),
    ]  # fmt: skip


def test_the_counters_of_a_tier_always_add_up_to_its_blocks(story: list[Event]) -> None:
    counters = [event for event in story if event["ph"] == "C"]
    assert {event["name"] for event in counters} == {"gpu blocks", "cpu blocks"}
    assert all(sum(event["args"].values()) == 3 for event in counters)


def test_no_nanosecond_is_lost(tmp_path: Path) -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    steps = [
        event
        for event in timeline(result, tmp_path)
        if event["ph"] == "X" and event["pid"] == 10 and event["tid"] == 1
    ]
    frame = result.steps
    assert [event["ts"] * 1000 for event in steps] == frame["started_at_ns"].tolist()
    ends = [(event["ts"] + event["dur"]) * 1000 for event in steps]
    assert ends == frame["finished_at_ns"].tolist()
    assert Decimal("0.001") * 1522858 == steps[0]["dur"]  # the first prompt takes 1,522,858 ns


@pytest.mark.parametrize(
    ("seed", "settings"),
    [
        (0, {}),
        (1, {"fail_rate": 0.02, "delay_rate": 0.05}),
        (2, {"hang_rate": 0.02, "transfer_timeout_ns": 10**7, "forward_timeout_ns": 10**9}),
        (3, {"swap_in": "wait", "decode_reserve_blocks": 0}),
    ],
)
def test_a_timeline_holds_whatever_happens(
    seed: int, settings: dict[str, float], tmp_path: Path
) -> None:
    result = kvsim.replay(
        "sample:chat", limit=60, gpu_blocks=260, cpu_blocks=300, seed=seed, events=True,
        **settings,  # type: ignore[arg-type]
    )  # fmt: skip
    events = timeline(result, tmp_path)
    check_timeline(events)
    assert sum(event["ph"] == "X" and event["pid"] == 2 for event in events) == len(
        result.transfers
    )


def test_a_rerun_has_the_timeline_of_the_run(tmp_path: Path) -> None:
    result = kvsim.replay(
        back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True, record=tmp_path / "run.turns"
    )
    again = rerun(tmp_path / "run.turns", keep=True)
    assert again.kept is not None
    again.kept.perfetto(tmp_path / "again.json")
    text = (tmp_path / "again.json").read_text(encoding="utf-8")
    assert read_timeline(text) == timeline(result, tmp_path)


def test_a_transfer_between_instances_is_on_a_row_of_its_own_with_its_layers() -> None:
    send = Transfer(1, Place(instance=0, tier=0), Place(instance=1, tier=0), (4,), (7,))
    answer = Completion(1, Outcome.DONE, 100, 160, layers_finished_at=(120, 160))
    events = list(op_events([TurnRecord(100, (send,), (answer,), 0, 0, 0)], num_ranks=1))
    names = [event.args["name"] for event in events if event.phase == "M" and event.args]
    assert names == ["links", "instance 0 gpu -> instance 1 gpu"]
    slices = [(e.name, e.at_ns, e.duration_ns) for e in events if e.phase == "X"]
    assert slices == [("1 blocks", 100, 60), ("layer 0", 100, 20), ("layer 1", 120, 40)]


def test_transfers_that_overlap_are_on_rows_of_their_own() -> None:
    ends = (Place(instance=0, tier=1), Place(instance=0, tier=0))
    ops = [Transfer(op_id, *ends, (op_id,), (op_id,)) for op_id in (1, 2, 3)]
    times = {1: (0, 50), 2: (10, 30), 3: (30, 60)}  # the third begins as the second ends
    answers = tuple(Completion(op, Outcome.DONE, *span) for op, span in times.items())
    events = list(op_events([TurnRecord(0, tuple(ops), answers, 0, 0, 0)], num_ranks=1))
    rows = {event.args["op"]: event.row[1] for event in events if event.phase == "X" and event.args}
    assert rows == {1: 1, 2: 2, 3: 2}


def _without(key: str) -> Callable[[list[Event]], None]:
    def spoil(events: list[Event]) -> None:
        del next(event for event in events if key in event)[key]

    return spoil


def _reverse(events: list[Event]) -> None:
    events.reverse()


def _drop(phase: str) -> Callable[[list[Event]], None]:
    def spoil(events: list[Event]) -> None:
        events.remove(next(event for event in events if event["ph"] == phase))

    return spoil


def _lengthen(events: list[Event]) -> None:
    first = next(event for event in events if event["ph"] == "X")
    first["dur"] = Decimal(1_000_500)  # into the second step, which is under way from 1,000,026 us


@pytest.mark.parametrize(
    "spoil",
    [_without("dur"), _without("cat"), _reverse, _lengthen, *map(_drop, "besfM")],
    ids=["no dur", "no cat", "order", "overlap", "b", "e", "s", "f", "M"],
)
def test_the_checker_notices_what_is_wrong(
    spoil: Callable[[list[Event]], None], story: list[Event]
) -> None:
    spoil(story)
    with pytest.raises((AssertionError, KeyError)):
        check_timeline(story)


def test_nothing_is_left_where_a_timeline_cannot_be_written(tmp_path: Path) -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=5, events=True)
    with pytest.raises(UserError, match="it is a folder; name a file"):
        result.perfetto(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_timeline_needs_events_and_a_clock(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="events=True"):
        kvsim.replay(three_prompts(), gpu_blocks=5).perfetto(tmp_path / "x.json")
    result = kvsim.replay(three_prompts(), gpu_blocks=5, instant=True, events=True)
    with pytest.raises(UserError, match="no clock"):
        result.perfetto(tmp_path / "x.json")


def test_the_same_run_is_the_same_bytes(tmp_path: Path) -> None:
    texts = set()
    for name in ("a.json", "b.json"):
        result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
        result.perfetto(tmp_path / name)
        texts.add((tmp_path / name).read_text(encoding="utf-8"))
    assert len(texts) == 1
    assert json.loads(texts.pop())["otherData"]["clock"] == "virtual"

"""What a split run leaves if it is asked for its events: one log an instance, and a timeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kvsim.analysis.occupancy import Occupancy
from kvsim.errors import UserError
from kvsim.events import RequestAdmitted
from tests.trace_events import check_timeline, read_timeline
from tests.unit.splitting.test_split import prompts, run

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.splitting import SplitResult
    from tests.trace_events import Event

PREFILL, DECODE, LINKS = 10, 11, 2


def timeline(result: SplitResult, folder: Path) -> list[Event]:
    result.perfetto(folder / "run.json")
    return read_timeline((folder / "run.json").read_text(encoding="utf-8"))


@pytest.fixture
def story(tmp_path: Path) -> list[Event]:
    """Return the timeline of one prompt of 16 blocks in two chunks, from 2 ranks to 1."""
    result = run(prompts(16), token_budget=512, tp="2:1", events=True)
    events = timeline(result, tmp_path)
    check_timeline(events)
    return events


def test_each_instance_has_its_role_and_a_row_for_each_of_its_ranks(story: list[Event]) -> None:
    names = [(e["pid"], e["args"]["name"]) for e in story if e["ph"] == "M"]
    assert names == [
        (PREFILL, "instance 0 (prefill)"), (PREFILL, "rank 0"), (PREFILL, "rank 1"),
        (DECODE, "instance 1 (decode)"), (DECODE, "rank 0"),
        (LINKS, "links"), (LINKS, "instance 0 gpu -> instance 1 gpu"),
        (1, "requests"),
    ]  # fmt: skip


def test_every_step_and_every_send_is_a_slice(story: list[Event]) -> None:
    slices = [(e["pid"], e["tid"], e["name"]) for e in story if e["ph"] == "X" and "args" in e]
    assert [name for pid, tid, name in slices if (pid, tid) == (PREFILL, 1)] == ["prefill 512"] * 2
    assert [name for pid, tid, name in slices if (pid, tid) == (PREFILL, 2)] == ["prefill 512"] * 2
    # Three tokens are made, the first of them by prefill.
    assert [name for pid, _, name in slices if pid == DECODE] == ["decode 1 x 2"]
    assert [name for pid, _, name in slices if pid == LINKS] == ["8 blocks"] * 2


def test_an_arrow_leads_from_the_step_of_a_chunk_to_its_send(story: list[Event]) -> None:
    arrows = [(e["ph"], e["pid"], e["id"]) for e in story if e["ph"] in "sf"]
    assert sorted(arrows) == [
        ("f", LINKS, 1),
        ("f", LINKS, 2),
        ("s", PREFILL, 1),
        ("s", PREFILL, 2),
    ]


def test_a_request_is_a_span_from_queue_to_decode(story: list[Event]) -> None:
    spans = [e["name"] for e in story if e["ph"] == "b"]
    # Nobody was before it: it waits for nothing, and decodes as soon as its KV is there.
    assert spans == ["request 0", "prefill", "sending", "decode"]


def test_an_instance_that_nothing_is_sent_to_has_a_name_all_the_same(tmp_path: Path) -> None:
    events = timeline(run(prompts(16), decode=2, events=True), tmp_path)
    check_timeline(events)
    assert "instance 2 (decode)" in [e["args"]["name"] for e in events if e["ph"] == "M"]


def test_each_instance_keeps_its_own_events() -> None:
    result = run(prompts(*range(5, 25)), prefill=2, decode=2, routing="round_robin", events=True)
    admitted = [
        {event.request_id for event in events if isinstance(event, RequestAdmitted)}
        for events in result.events
    ]
    frame = result.requests
    for number in range(4):
        column = frame["prefill"] if number < 2 else frame["decode"]
        assert admitted[number] == set(frame["request_id"][column == number])
        assert admitted[number]


@pytest.mark.parametrize(
    "settings",
    [
        {"prefill": 2, "decode": 2, "tp": "4:2"},
        {"fail_rate": 0.1, "seed": 3, "preempt": "swap"},
        {"link": 20, "send_timeout_ns": 3_000_000, "prefill": 2},
        {"send": "at_end", "tier_inclusion": "inclusive", "write_policy": "through"},
    ],
    ids=["several", "failures", "deadlines", "inclusive"],
)
def test_a_timeline_and_its_counters_hold_whatever_happens(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    sizes = {"gpu_blocks": 120, "cpu_blocks": 90}
    result = run(prompts(*range(5, 55), shared=4), **(sizes | settings), events=True)
    events = timeline(result, tmp_path)
    check_timeline(events)
    num_sends = sum(e["ph"] == "X" and e["pid"] == LINKS and "args" in e for e in events)
    assert num_sends >= len(result.sends) > 0
    counters = [e for e in events if e["ph"] == "C"]
    assert {e["pid"] for e in counters} == {10 + i for i in range(len(result.logs))}
    assert all(sum(e["args"].values()) == sizes[e["name"][:3] + "_blocks"] for e in counters)
    for log in result.logs:  # would raise if the events of two instances were mixed
        occupancy = Occupancy(log.tier_blocks)
        for event in log.events:
            occupancy.emit(event)


def test_events_and_a_timeline_are_kept_only_if_they_are_asked_for(tmp_path: Path) -> None:
    result = run(prompts(16))
    assert result.outcome.logs == ()
    with pytest.raises(UserError, match="events=True"):
        result.perfetto(tmp_path / "run.json")
    with pytest.raises(UserError, match="events=True"):
        _ = result.events
    kept = run(prompts(16), events=True)
    figures, same = result.summary(), kept.summary()
    assert figures.pop("provenance") != same.pop("provenance")  # how long they took
    assert figures == same
    with pytest.raises(UserError, match="it is a folder; name a file"):
        kept.perfetto(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_same_split_is_the_same_timeline(tmp_path: Path) -> None:
    texts = set()
    for name in ("a.json", "b.json"):
        result = run(prompts(*range(5, 15)), prefill=2, decode=2, fail_rate=0.2, events=True)
        result.perfetto(tmp_path / name)
        texts.add((tmp_path / name).read_text(encoding="utf-8"))
    assert len(texts) == 1

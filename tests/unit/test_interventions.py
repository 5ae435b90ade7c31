"""What an operator does while a run goes on: as text, in time, in the result and in a recording."""

from __future__ import annotations

import json
from dataclasses import replace
from random import Random
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.backends.sim import SimBackend
from kvsim.cli import main
from kvsim.config import CacheConfig, LinkConfig, SchedulerConfig
from kvsim.core.engine import run
from kvsim.core.interventions import Action, Intervention, Operator, Status
from kvsim.core.manager import CacheManager
from kvsim.core.scheduler import Scheduler
from kvsim.cost import LinearCost
from kvsim.errors import ConfigError, UserError
from kvsim.events import CacheCleared, InterventionTaken, RequestAdmitted
from kvsim.interventions import peak_blocks, resolve_interventions
from kvsim.policies import policy_factory
from kvsim.recording import rerun
from kvsim.testing import CheckedPolicy, Prompt, make_request
from tests.unit.stories import SECOND_NS, trace_of

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kvsim.core.interventions import InterventionRecord
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import EvictionPolicy, PolicyContext
    from kvsim.result import ReplayResult
    from kvsim.trace import Trace

COST = LinearCost(step_ns=3, token_ns=1, attention_ns=0, block_bytes=4, num_layers=2)
LINK = LinkConfig(bytes_per_second=10**9, latency_ns=2, overhead_ns=0)


def replayed(trace: Trace, *orders: str, gpu: int = 4, cpu: int = 0) -> ReplayResult:
    """Return the result of a trace, a second between its requests, with these orders."""
    return kvsim.replay(trace, gpu_blocks=gpu, cpu_blocks=cpu, interventions=orders, events=True)


def hits(result: ReplayResult) -> list[int]:
    """Return the blocks that each request hit."""
    return [each.num_gpu_hit_blocks + each.num_cpu_hit_blocks for each in result.records]


# -- in time: requests arrive at 0, 1, 2, ... seconds, and each takes some milliseconds


def test_a_flush_between_two_equal_requests_costs_the_hits() -> None:
    trace = trace_of(("abc", 12), ("abc", 12), ("abc", 12))
    assert hits(replayed(trace)) == [0, 3, 3]
    flushed = replayed(trace, "500ms flush")
    assert hits(flushed) == [0, 0, 3]
    (record,) = flushed.interventions
    assert (record.status, record.done_at) == (Status.DONE, SECOND_NS // 2)
    assert flushed.events is not None
    assert CacheCleared(reason="flush", version=0) in flushed.events


def test_other_weights_match_nothing_of_the_old_ones_in_any_tier() -> None:
    trace = trace_of(("abc", 12), ("def", 12), ("abc", 12), ("abc", 12))
    assert hits(replayed(trace, gpu=3, cpu=3)) == [0, 0, 3, 3]  # from below, then from above
    assert hits(replayed(trace, "1500ms weights", gpu=3, cpu=3)) == [0, 0, 0, 3]


def test_a_pinned_prompt_stays_and_what_is_evicted_goes() -> None:
    trace = trace_of(("ab", 8), ("cd", 8), ("ef", 8), ("ab", 8))
    assert hits(replayed(trace, gpu=4)) == [0, 0, 0, 0]  # ab is the oldest when ef comes
    assert hits(replayed(trace, "500ms pin request=0", gpu=4)) == [0, 0, 0, 2]
    assert hits(replayed(trace, "500ms pin request=0 blocks=1", gpu=4)) == [0, 0, 0, 1]
    unpinned = ("500ms pin request=0", "1500ms unpin request=0")
    assert hits(replayed(trace, *unpinned, gpu=4)) == [0, 0, 0, 0]
    assert hits(replayed(trace, "2500ms evict request=0", gpu=6)) == [0, 0, 0, 0]


def test_a_tier_that_grows_keeps_more_and_one_that_shrinks_less() -> None:
    trace = trace_of(("ab", 8), ("cd", 8), ("ef", 8), ("ab", 8))
    assert hits(replayed(trace, "500ms resize gpu=6", gpu=4)) == [0, 0, 0, 2]
    assert hits(replayed(trace, "500ms resize gpu=2", gpu=6)) == [0, 0, 0, 0]
    assert hits(replayed(trace, "500ms resize gpu=2", "600ms resize cpu=4", gpu=6, cpu=1)) == [
        0, 0, 0, 2,
    ]  # fmt: skip


def test_a_flush_with_running_work_waits_or_is_refused() -> None:
    """Requests 0 and 1 arrive together; the order comes while they run, and request 2 waits."""
    one, two, three = trace_of(("ab", 8), ("cd", 8), ("ab", 8), gap_ns=0).requests
    slow = replace(one, num_output_tokens=500), two, replace(three, arrived_at=10**7)
    trace = replace(trace_of(("ab", 8), ("cd", 8), ("ab", 8)), requests=slow)
    waited = replayed(trace, "5ms flush", gpu=200)
    (record,) = waited.interventions
    assert record.status is Status.DONE
    assert record.taken_at is not None
    assert record.done_at is not None
    assert record.taken_at < record.done_at
    assert record.done_at == waited.records[0].ended_at
    # Nobody is admitted before it is done.
    assert waited.records[2].admitted_at == record.done_at
    assert hits(waited)[2] == 0
    told = [each for each in waited.events or () if isinstance(each, InterventionTaken)]
    assert [each.status for each in told] == ["deferred", "done"]
    refused = replayed(trace, "5ms flush busy=refuse", gpu=200)
    assert refused.interventions[0].status is Status.REFUSED
    assert refused.interventions[0].done_at is None
    assert hits(refused)[2] == 2


def test_a_shrink_waits_for_those_who_would_not_fit_and_refuses_who_comes_later() -> None:
    """Request 0 needs 3 blocks and runs when the tier is to have 2; request 1 comes later."""
    first, second = trace_of(("abc", 12), ("def", 12), gap_ns=10**7).requests
    requests = (replace(first, num_output_tokens=4), second)
    trace = replace(trace_of(("abc", 12), ("def", 12)), requests=requests)
    result = replayed(trace, "1ns resize gpu=2", gpu=6)
    assert [each.status for each in result.records] == ["finished", "refused"]
    (record,) = result.interventions
    assert (record.status, record.done_at) == (Status.DONE, result.records[0].ended_at)


def test_pins_that_leave_no_room_are_refused() -> None:
    trace = trace_of(("abc", 12), ("def", 12), ("abc", 12))
    result = replayed(trace, "500ms pin request=0", "500ms unpin request=1", gpu=3)
    assert [each.status for each in result.interventions] == [Status.REFUSED] * 2
    assert result.interventions[0].detail == "3 pinned blocks leave no room in 3"
    # With room for 4, request 1 has 1 block beside the pinned 3, and needs 3.
    pinned = replayed(trace, "500ms pin request=0", gpu=4)
    assert [each.status for each in pinned.records] == ["finished", "refused", "finished"]


def test_a_size_that_pinned_blocks_keep_off_is_told_as_unfinished() -> None:
    """Request 0 has blocks 0 and 1, request 1 blocks 2 and 3; these are pinned, and 2 is the size.

    The GPU tier of 6 blocks hands out the lowest first.
    """
    trace = trace_of(("ab", 8), ("cd", 8))
    result = replayed(trace, "1500ms pin request=1", "1600ms resize gpu=3", gpu=6)
    record = result.interventions[1]
    assert (record.status, record.done_at) == (Status.UNFINISHED, None)
    assert record.detail == "1 blocks beyond the size are pinned"


def test_an_order_that_waits_when_the_last_request_is_refused_comes_to_its_end() -> None:
    """Blocks 2 and 3 are pinned, and the size is 3: request 2 is refused, and that is all."""
    trace = trace_of(("ab", 8), ("cd", 8), ("efgh", 16))
    result = replayed(trace, "1500ms pin request=1", "1600ms resize gpu=3", gpu=6)
    assert [each.status for each in result.records] == ["finished", "finished", "refused"]
    assert result.interventions[1].status is Status.UNFINISHED


def test_orders_after_the_last_request_are_carried_out() -> None:
    result = replayed(trace_of(("ab", 8)), "9s flush", "8s pin request=0")
    assert [each.done_at for each in result.interventions] == [8 * SECOND_NS, 9 * SECOND_NS]


# -- in a recording, a summary, on the command line


def test_a_run_with_orders_is_decided_alike_from_its_recording(tmp_path: Path) -> None:
    path = tmp_path / "run.kvr"
    result = kvsim.replay(
        "sample:chat",
        gpu_blocks=400,
        cpu_blocks=400,
        limit=60,
        interventions=(
            "5s pin request=0 blocks=8",
            "20s resize gpu=200",
            "30s weights",
            "40s resize cpu=100",
            "50s flush",
            "60s resize gpu=600",
        ),
        retain="tokens=0:512,priority=80,for=20s;outputs,priority=0",
        record=path,
        verify=True,
    )
    assert result.recording is not None
    assert result.recording["identical"]
    assert all(each.status is Status.DONE for each in result.interventions)
    again = rerun(path)
    assert again.identical, again.difference


def test_the_summary_says_what_became_of_each_order() -> None:
    result = replayed(trace_of(("ab", 8)), "2s resize gpu=3")
    (figures,) = json.loads(result.to_json())["interventions"]
    assert figures == {
        "action": "resize",
        "at_ns": 2 * SECOND_NS,
        "blocks": 3,
        "detail": "3 blocks",
        "done_at_ns": 2 * SECOND_NS,
        "status": "done",
        "taken_at_ns": 2 * SECOND_NS,
        "tier": 0,
    }
    assert ("resize at 2 s", "done: 3 blocks") in result.fact_rows()


def test_the_command_line_takes_an_order_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--at", "10s", "resize", "gpu=500", "--at", "20s", "flush"]
    assert main(["replay", "sample:chat", "--limit", "50", "--gpu-blocks", "1000", *words]) == 0
    out, _ = capsys.readouterr()
    assert "resize at 10 s" in out
    assert "flush at 20 s" in out


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("10 flush", "must begin with a time and its unit"),
        ("", "must begin with a time"),
        ("10s", "unknown intervention ''"),
        ("10s flash", "unknown intervention 'flash'. Did you mean 'flush'"),
        ("10s resize", "must say one new size"),
        ("10s resize gpu=1 cpu=2", "must say one new size"),
        ("10s resize gpu=0", "gpu must be an integer of at least 1"),
        ("10s resize gpu=x", "gpu must be an integer of at least 1"),
        ("10s resize cpu=4", "interventions resize tier 1, and this run has 1"),
        ("10s flush gpu=1", "flush takes busy=..., each once, and not 'gpu=1'"),
        ("10s flush busy=maybe", "busy must be wait or refuse"),
        ("10s weights now", "weights takes nothing"),
        ("10s pin", "must say whose prompt"),
        ("10s pin request=2", "names request 2, and story has requests 0 to 1"),
        ("10s pin request=0 blocks=3", "asks for 3 blocks, and the prompt of request 0 has 2"),
    ],
)
def test_an_impossible_order_is_one_line_that_says_what_would_be_right(
    text: str, problem: str
) -> None:
    with pytest.raises(UserError, match=problem.replace("(", r"\(")) as caught:
        replayed(trace_of(("ab", 8), ("cd", 8)), text)
    assert "\n" not in str(caught.value)


def test_an_instant_replay_takes_no_orders() -> None:
    with pytest.raises(ConfigError, match="leave out instant"):
        kvsim.replay(trace_of(("ab", 8)), gpu_blocks=4, interventions=("1s flush",), instant=True)
    with pytest.raises(ConfigError, match="must be a list of texts, not '1s flush'"):
        kvsim.replay(trace_of(("ab", 8)), gpu_blocks=4, interventions="1s flush")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be texts such as '10s flush', not 3"):
        kvsim.replay(trace_of(("ab", 8)), gpu_blocks=4, interventions=(3,))  # type: ignore[arg-type]


def test_times_follow_the_speed_of_a_wall_clock_and_memory_the_largest_size() -> None:
    trace = trace_of(("ab", 8))
    texts = ("10s flush", "2.5ms resize gpu=9", "1us resize gpu=3")
    fast = resolve_interventions(texts, trace, speed=4)
    assert [each.at for each in fast] == [2_500_000_000, 625_000, 250]
    assert peak_blocks(texts, (5, 7)) == (9, 7)
    assert resolve_interventions(texts, trace, most_blocks=6)[1].num_blocks == 6


# -- at any time


class Watched:
    """A `TurnObserver` that checks the cache after each turn."""

    def __init__(self, manager: CacheManager) -> None:
        self._manager = manager

    def turn(self, now: int, commands: Sequence[Command], answers: Sequence[Answer]) -> None:
        del now, commands, answers
        self._manager.check()


class Kept:
    """A sink."""

    def __init__(self) -> None:
        self.events: list[object] = []

    def emit(self, event: object) -> None:
        self.events.append(event)


def run_story(seed: int) -> list[InterventionRecord]:
    """Run random requests with random orders; return what came of these."""
    rng = Random(seed)
    size = rng.randint(1, 3)
    requests, at = [], 0
    for index in range(8):
        at += rng.choice([0, 1, 5, 30]) if index else 0
        prompt = Prompt(
            tuple(rng.choice([0, 0, 1]) for _ in range(rng.randint(1, 4))), rng.randint(1, size)
        )
        request = make_request(index, prompt, block_size=size, num_output_tokens=rng.randint(1, 6))
        requests.append(replace(request, arrived_at=at))
    orders = [_order(rng, [each.block_keys for each in requests]) for _ in range(5)]
    _, make, _ = policy_factory(rng.choice(["lru", "fifo", "arc", "sieve", "belady"]))

    def checked(context: PolicyContext) -> EvictionPolicy:
        return CheckedPolicy(make(context))

    sink = Kept()
    manager = CacheManager(
        CacheConfig(block_size=size, tier_blocks=(rng.randint(8, 12), rng.choice([2, 5, 9]))),
        checked,
        rng=Random(0),
        sink=sink,
    )
    config = SchedulerConfig(token_budget=8, max_running=rng.randint(1, 4))
    scheduler = Scheduler(manager, requests, config, sink=sink)
    operator = Operator(manager, scheduler, orders, sink=sink)
    run(operator, SimBackend(COST, links=LINK, num_ranks=1), observer=Watched(manager))
    assert len(scheduler.ended) == len(requests)
    assert not manager.has_open_ops
    _check_events(sink.events)
    return operator.records


def _order(rng: Random, prompts: Sequence[Sequence[object]]) -> Intervention:
    action = rng.choice(list(Action))
    keys = tuple(rng.choice(prompts))
    if action in {Action.PIN, Action.UNPIN, Action.EVICT} and not keys:
        action = Action.WEIGHTS
    return Intervention(
        at=rng.randint(0, 120),
        action=action,
        keys=keys[: rng.randint(1, len(keys))] if keys else (),
        tier=rng.randint(0, 1),
        num_blocks=rng.randint(3, 14),
        waits=rng.choice([True, True, False]),
    )


def _check_events(events: Sequence[object]) -> None:
    """Nobody is admitted while a flush waits."""
    waiting: set[int] = set()
    for event in events:
        if isinstance(event, InterventionTaken) and event.action == "flush":
            (waiting.add if event.status == "deferred" else waiting.discard)(event.position)
        assert not (waiting and isinstance(event, RequestAdmitted)), event


def run_stories(seeds: range) -> set[Status]:
    """Run a story for each seed; every order comes to its end. Return which ends there were."""
    statuses: set[Status] = set()
    for seed in seeds:
        records = run_story(seed)
        statuses.update(each.status for each in records)
        assert Status.DEFERRED not in {each.status for each in records}, f"seed {seed}"
    return statuses


def test_every_request_and_every_order_comes_to_its_end() -> None:
    assert run_stories(range(60)) >= {Status.DONE, Status.REFUSED}


@pytest.mark.thorough
def test_the_same_of_many_stories() -> None:
    assert run_stories(range(1000, 6000)) == set(Status) - {Status.DEFERRED}

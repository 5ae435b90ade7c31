from __future__ import annotations

import inspect
import json
from dataclasses import fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.config import LinkConfig
from kvsim.core.sequence import Status
from kvsim.errors import ConfigError, TraceError, UnknownNameError, UserError
from kvsim.events import BlocksStored, RequestAdmitted, RequestRefused
from kvsim.presets import HARDWARE
from kvsim.replay_config import ReplayConfig
from kvsim.trace import Trace, annotate_next_use, write
from tests.unit.stories import back_from_below, three_prompts, trace_of

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.core.ports import AccessInfo, PolicyContext, RemoveReason
    from kvsim.types import BlockKey


class ColdestFirst:
    """A per-block policy: first in, first out."""

    def __init__(self, context: PolicyContext) -> None:
        self.is_evictable: dict[BlockKey, bool] = {}

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        self.is_evictable[key] = False

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None: ...

    def on_evictable(self, key: BlockKey) -> None:
        self.is_evictable[key] = True

    def on_pinned(self, key: BlockKey) -> None:
        self.is_evictable[key] = False

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        del self.is_evictable[key]

    def choose_victim(self, now: int) -> BlockKey | None:
        return next((key for key, is_it in self.is_evictable.items() if is_it), None)


def hits_of(result: kvsim.ReplayResult) -> list[tuple[int, int]]:
    return [(each.num_gpu_hit_blocks, each.num_cpu_hit_blocks) for each in result.records]


# -- what is hit


@pytest.mark.parametrize("instant", [False, True])
def test_hits_are_those_worked_out_by_hand(instant: bool) -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=100, instant=instant)
    assert hits_of(result) == [(0, 0), (3, 0), (1, 0)]
    figures = {name: (each["hits"], each["total"]) for name, each in result.hits.items()}
    assert figures == {
        "block": (4, 8),
        "prefix_block": (4, 8),
        "prefix_token": (14, 26),
        "prefix_token_usable": (12, 26),
    }
    assert result.hits["block"]["rate"] == 0.5


def test_the_warm_up_warms_the_cache_and_is_not_counted() -> None:
    # The first of three: .34 * 3 = 1.02. It would have been 3 references and 10 tokens.
    result = kvsim.replay(three_prompts(), gpu_blocks=100, warmup=0.34)
    assert result.hits["block"] == {"hits": 4, "total": 5, "rate": 0.8}
    assert result.hits["prefix_token"]["total"] == 16


@pytest.mark.parametrize("instant", [False, True])
def test_a_block_that_was_driven_down_is_hit_below(instant: bool) -> None:
    result = kvsim.replay(
        back_from_below(), gpu_blocks=3, cpu_blocks=6, swap_batch_blocks=1, instant=instant
    )
    assert hits_of(result) == [(0, 0), (0, 0), (0, 3)]
    assert result.tiers["cpu"]["hits"]["block"] == {"hits": 3, "total": 9, "rate": 1 / 3}
    assert result.tiers["gpu"]["hits"]["block"]["hits"] == 0
    assert [result.tiers[tier]["capacity_blocks"] for tier in ("gpu", "cpu")] == [3, 6]


def test_an_unbounded_cache_hits_what_the_public_traces_are_known_for(public_traces: Path) -> None:
    for name, by_warmup in (
        ("conversation", {0.0: (0.36641, 0.37362, 0.37338), 0.5: (None, 0.39811, None)}),
        ("synthetic", {0.0: (0.63960, 0.65124, 0.65043), 0.5: (None, 0.86275, None)}),
    ):
        trace = kvsim.load_trace(public_traces / "mooncake" / f"{name}_trace.jsonl")
        for warmup, expected in by_warmup.items():
            hits = kvsim.replay(trace, gpu_blocks=10**12, instant=True, warmup=warmup).hits
            rates = [hits[key]["rate"] for key in ("block", "prefix_token", "prefix_token_usable")]
            for rate, known in zip(rates, expected, strict=True):
                assert known is None or round(rate, 5) == known


# -- what comes of a request


def test_a_request_in_virtual_time_has_its_times_in_order() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=100)
    for record in result.records:
        assert record.status is Status.FINISHED
        times = (record.request.arrived_at, record.admitted_at, record.first_token_at)
        assert times[0] == times[1]  # nobody is in the way
        # One token of output: the end is the first token.
        assert record.first_token_at == record.ended_at
    assert result.clock == "virtual"


def test_an_instant_replay_has_no_times_and_no_transfers() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=6, instant=True)
    assert {(each.admitted_at, each.first_token_at) for each in result.records} == {(None, None)}
    assert (result.ttft_ms, result.swaps, result.clock) == (None, None, "none")


def test_a_request_that_can_never_fit_is_refused_and_counts_as_a_miss() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=2)
    assert [record.status.value for record in result.records] == ["refused", "refused", "finished"]
    assert result.hits["block"] == {"hits": 0, "total": 8, "rate": 0.0}
    assert result.notes == (
        "2 requests were refused and count as misses: the largest needs 3 blocks, and a request"
        " may have 2",
    )


@pytest.mark.parametrize("settings", [{"gpu_blocks": 1}, {"max_blocks_per_request": 1}])
def test_if_all_are_refused_that_is_an_error_that_says_why(settings: dict[str, int]) -> None:
    with pytest.raises(UserError, match=r"all 3 were refused, since the smallest needs 2 blocks"):
        kvsim.replay(three_prompts(), config=ReplayConfig().with_settings(settings))


def test_if_none_finishes_that_is_an_error_that_counts_the_ways() -> None:
    with pytest.raises(
        UserError, match="0 refused, 0 cancelled by their clients, 3 failed 2 times"
    ):
        kvsim.replay(three_prompts(), gpu_blocks=100, fail_rate=1.0, max_attempts=2)


def test_transfers_are_kept_with_their_bytes() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=6, swap_batch_blocks=1)
    ups = [each for each in result.transfer_records if each.target == 0]
    assert sum(each.num_blocks for each in ups) == 3
    assert {each.request_id for each in ups} == {2}
    assert all(each.issued_at <= each.started_at < each.finished_at for each in ups)
    # llama-3.1-8b in bf16: 131,072 bytes a token, 4 tokens a block, over all ranks
    assert result.swaps is not None
    assert result.swaps["swap_in"]["bytes"] == 3 * 4 * 131_072
    assert result.rank_block_bytes * result.num_ranks == 4 * 131_072


# -- what can be given


def test_a_trace_may_be_a_path_a_sample_or_loaded(tmp_path: Path) -> None:
    write(three_prompts(), tmp_path / "t.jsonl")
    by_path = kvsim.replay(tmp_path / "t.jsonl", gpu_blocks=100)
    by_text = kvsim.replay(str(tmp_path / "t.jsonl"), gpu_blocks=100)
    loaded = kvsim.replay(kvsim.load_trace(tmp_path / "t.jsonl"), gpu_blocks=100)
    assert by_path.hits == by_text.hits == loaded.hits
    assert by_path.provenance.trace_sha256 == loaded.provenance.trace_sha256 is not None
    chat = kvsim.replay("sample:chat", gpu_blocks=1000, limit=50)
    assert (chat.trace.name, chat.trace.num_requests) == ("chat", 50)
    assert kvsim.sample("chat").num_requests == 2000


def test_settings_of_a_loaded_trace_are_compared_with_it() -> None:
    for name, message in (
        ("partial", "partial of trace story is count, not never"),
        ("format", "format of trace story is story, not never"),
    ):
        with pytest.raises(ConfigError, match=message):
            kvsim.replay(three_prompts(), config=ReplayConfig().with_settings({name: "never"}))
    with pytest.raises(ConfigError, match="block_size of trace story is 4, not 8"):
        kvsim.replay(three_prompts(), block_size=8)
    assert kvsim.replay(three_prompts(), block_size=4, partial="count", gpu_blocks=9).records


def test_limit_cuts_a_loaded_trace() -> None:
    assert hits_of(kvsim.replay(three_prompts(), limit=2, gpu_blocks=9)) == [(0, 0), (3, 0)]


def test_a_trace_without_requests_is_refused() -> None:
    with pytest.raises(UserError, match="trace story has no requests"):
        kvsim.replay(replace(three_prompts(), requests=()))


def test_a_file_that_is_not_there_is_a_trace_error(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="no such file"):
        kvsim.replay(tmp_path / "none.jsonl")
    with pytest.raises(UnknownNameError, match=r"'chatt'\. Did you mean 'chat'\?"):
        kvsim.replay("sample:chatt")


# With 4 blocks something has to go for "e": a FIFO drops "a", the LRU "b".
STORY = (("a", 4), ("b", 4), ("a", 4), ("c", 4), ("d", 4), ("e", 4), ("a", 4))


def test_a_policy_may_be_a_name_a_class_a_function_or_an_object() -> None:
    trace = trace_of(*STORY)
    settings = {"gpu_blocks": 4, "low_watermark_blocks": 0}
    config = ReplayConfig().with_settings(settings)
    expected = hits_of(kvsim.replay(trace, policy="fifo", config=config))
    assert expected[2:] == [(1, 0), (0, 0), (0, 0), (0, 0), (0, 0)]

    by_class = kvsim.replay(trace, policy=ColdestFirst, config=config)
    by_function = kvsim.replay(trace, policy=lambda context: ColdestFirst(context), config=config)
    made: list[ColdestFirst] = []

    def keep(context: PolicyContext) -> ColdestFirst:
        made.append(ColdestFirst(context))
        return made[-1]

    kvsim.replay(trace, policy=keep, config=config)
    assert hits_of(by_class) == hits_of(by_function) == expected
    assert by_class.config.policy == "ColdestFirst"
    assert len(made) == 1
    assert hits_of(kvsim.replay(trace, policy="lru", config=config))[-1] == (1, 0)


class Frozen(ColdestFirst):
    """An object without a context, for one tier."""

    def __init__(self) -> None:
        self.is_evictable = {}


def test_one_policy_object_serves_one_tier() -> None:
    assert kvsim.replay(three_prompts(), policy=Frozen(), gpu_blocks=9).config.policy == "Frozen"
    with pytest.raises(ConfigError, match="policy must be a class or a name"):
        kvsim.replay(three_prompts(), policy=Frozen(), gpu_blocks=9, cpu_blocks=9)


def test_a_clairvoyant_policy_is_told_the_future() -> None:
    trace = trace_of(*STORY)
    result = kvsim.replay(trace, policy="belady", gpu_blocks=4)
    assert hits_of(result)[-1] == (1, 0)
    assert result.hits == kvsim.replay(annotate_next_use(trace), policy="belady", gpu_blocks=4).hits


def test_a_keyword_goes_before_the_config_and_the_config_before_the_default(tmp_path: Path) -> None:
    run_file = tmp_path / "run.toml"
    run_file.write_text('gpu_blocks = 7\nseed = 5\npolicy = "fifo"\n')
    result = kvsim.replay(three_prompts(), config=run_file, seed=6)
    assert (result.config.gpu_blocks, result.config.seed, result.config.policy) == (7, 6, "fifo")
    assert result.config.max_running == 256
    assert kvsim.replay(three_prompts(), config=run_file, policy="lru").config.policy == "lru"


def test_a_result_can_be_replayed_from_its_own_config(tmp_path: Path) -> None:
    write(three_prompts(), tmp_path / "t.jsonl")
    first = kvsim.replay(tmp_path / "t.jsonl", gpu_gib=0.01, cpu_gib=0.01, seed=3)
    again = kvsim.replay(tmp_path / "t.jsonl", config=first.config)
    assert (again.config, again.records) == (first.config, first.records)


def test_an_unknown_keyword_is_guessed() -> None:
    with pytest.raises(UnknownNameError, match=r"setting 'gpu_block'\. Did you mean 'gpu_blocks'"):
        kvsim.replay(three_prompts(), gpu_block=3)  # type: ignore[call-arg]


def test_the_signature_spells_the_settings_out() -> None:
    parameters = inspect.signature(kvsim.replay).parameters
    assert {each.name for each in fields(ReplayConfig)} <= set(parameters)
    assert parameters["warmup"].default == 0.0
    kinds = {each.kind for name, each in parameters.items() if name != "trace"}
    assert kinds == {inspect.Parameter.KEYWORD_ONLY}


def test_events_are_kept_if_asked_for() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=3, events=True)
    assert result.events is not None
    admitted = [each.request_id for each in result.events if isinstance(each, RequestAdmitted)]
    assert admitted == [0, 1, 2]
    assert any(isinstance(each, BlocksStored) for each in result.events)
    refused = kvsim.replay(three_prompts(), gpu_blocks=2, events=True).events
    assert [each.request_id for each in refused or () if isinstance(each, RequestRefused)] == [0, 1]
    assert kvsim.replay(three_prompts(), gpu_blocks=3).events is None


@pytest.mark.parametrize("instant", [False, True])
def test_progress_rises_to_the_number_of_requests(instant: bool) -> None:
    told: list[tuple[int, int]] = []
    trace = trace_of(*[("a", 4)] * 200)
    quiet = kvsim.replay(trace, gpu_blocks=9, instant=instant)
    watched = kvsim.replay(
        trace, gpu_blocks=9, instant=instant, progress=lambda *now: told.append(now)
    )
    assert watched.records == quiet.records
    assert told[-1] == (200, 200)
    assert len(told) >= 3
    assert all(a[0] <= b[0] for a, b in pairwise(told))


# -- faults and notes


def test_faults_are_the_same_for_the_same_seed() -> None:
    def transfers(seed: int) -> list[str]:
        result = kvsim.replay(
            "sample:chat", limit=300, gpu_blocks=700, cpu_blocks=2000, seed=seed,
            fail_rate=0.02, hang_rate=0.02, transfer_timeout_ns=10**8, forward_timeout_ns=10**10,
        )  # fmt: skip
        return [each.outcome for each in result.transfer_records]

    assert transfers(1) == transfers(1) != transfers(2)
    assert {"done", "failed", "timed_out"} <= set(transfers(1))


def test_a_host_link_faster_than_any_is_noted() -> None:
    link = LinkConfig(bytes_per_second=2 * 10**12, latency_ns=0, overhead_ns=0)
    machine = replace(HARDWARE["h200-8x"], name="dream", host_link=link)
    (note,) = kvsim.replay(three_prompts(), gpu_blocks=9, hardware=machine).notes
    assert note.startswith("the host link of dream moves 2 TB/s a GPU, more than any that exists")


def test_a_tier_larger_than_the_memory_is_noted() -> None:
    (note,) = kvsim.replay(three_prompts(), gpu_blocks=10**9, kv_dtype="fp8").notes
    assert note.startswith("1000000000 GPU blocks are more than h200-8x has room for")


def test_repairs_of_the_trace_are_notes(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    write(three_prompts(), path)
    header, first, *others = path.read_text().splitlines()
    path.write_text("\n".join([header, *others, first]) + "\n")
    assert kvsim.replay(path, gpu_blocks=9).notes[0].startswith("sorted by time: 1 row earlier")


def test_without_excess_nothing_changes() -> None:
    # The whole trace has 35,003 blocks of prompts, so both have room for everything.
    huge, large = (
        kvsim.replay("sample:chat", limit=400, gpu_blocks=size, cpu_blocks=10)
        for size in (10**15, 60_000)
    )
    assert huge.records == large.records
    assert json.loads(huge.to_json())["tiers"]["gpu"]["capacity_blocks"] == 10**15


def test_a_trace_made_in_python_has_no_hash() -> None:
    trace: Trace = three_prompts()
    made = kvsim.replay(trace, gpu_blocks=9).provenance
    assert (made.trace, made.trace_sha256) == ("story", None)

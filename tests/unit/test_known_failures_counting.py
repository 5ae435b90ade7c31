"""Faults reported of other systems: what is computed, counted and timed (A6, A9, I1, J4, J7, K1).

A block is four tokens; a step of n tokens takes 10 + n ns, a copy of a block 10 ns.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from kvsim.config import CacheConfig, LinkConfig, SchedulerConfig
from kvsim.core.ops import Completion, Outcome
from kvsim.cost import RooflineCost
from kvsim.errors import ConfigError
from kvsim.events import BlocksStored, RequestAdmitted
from kvsim.presets import find_hardware, find_model
from tests.unit.core.stage import Engine, ask, engine

REPOSITORY = Path(__file__).parents[2]


# A6: a prompt that is cached as a whole leaves nothing to compute


def test_a_prompt_that_is_cached_as_a_whole_computes_its_last_token_and_writes_nothing() -> None:
    stage = engine(
        ask(0, range(1, 9)), ask(1, range(1, 9), at=100), ask(2, range(1, 5), at=200), gpu=6
    ).play()
    assert stage.slices() == [(0, 0, 8), (1, 7, 1), (2, 3, 1)]
    assert [f.prefill[0].writes for f in stage.forwards] == [True, False, False]
    # It takes no block beyond those it hits.
    assert [len(f.prefill[0].block_ids) for f in stage.forwards] == [2, 2, 1]
    assert [record.num_gpu_hit_blocks for record in stage.records.values()] == [0, 2, 1]
    admissions = [e for e in stage.events if isinstance(e, RequestAdmitted)]
    assert [len(e.private_block_ids) for e in admissions] == [2, 0, 0]


def test_a_prompt_that_is_cached_but_for_its_last_token_writes_that_into_its_own_block() -> None:
    stage = engine(ask(0, range(1, 9)), ask(1, range(1, 6), at=100), gpu=6).play()
    assert stage.slices() == [(0, 0, 8), (1, 4, 1)]
    first, second = (forward.prefill[0] for forward in stage.forwards)
    assert second.writes
    assert second.block_ids[0] == first.block_ids[0]
    assert second.block_ids[1] not in first.block_ids


def test_a_prompt_that_is_cached_in_two_tiers_computes_its_last_token_behind_the_copy() -> None:
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(20, 32), at=100),
        ask(2, range(1, 9), at=300),
        gpu=4,
        cpu=8,
    ).play()
    record = stage.records[2]
    assert (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks) == (1, 1)
    assert stage.slices()[-1] == (2, 7, 1)
    last = stage.forwards[-1]
    assert not last.prefill[0].writes
    assert last.after == (stage.transfers[-1].op_id,)


def test_output_tokens_of_a_fully_cached_prompt_go_into_a_block_of_their_own() -> None:
    stage = engine(
        ask(0, range(1, 9)), ask(1, range(1, 9), num_output_tokens=3, at=100), gpu=6
    ).play()
    shared = stage.forwards[0].prefill[0].block_ids
    (member,) = stage.forwards[-1].joined
    assert member.num_tokens == 8
    assert member.block_ids[:2] == shared
    assert len(member.block_ids) == 3


# A9: the wrong length is kept


@pytest.mark.parametrize(("num_output_tokens", "num_kept"), [(1, 1), (2, 2), (5, 2), (6, 3)])
def test_the_token_made_last_has_no_kv(num_output_tokens: int, num_kept: int) -> None:
    # 7 tokens and n - 1 more: full blocks are (7 + n - 1) // 4.
    stage = engine(ask(0, range(1, 8), num_output_tokens=num_output_tokens), gpu=9).play()
    assert stage.manager.num_evictable_blocks == num_kept


def test_the_same_blocks_are_kept_in_whatever_chunks_a_prompt_is_computed() -> None:
    kept = []
    for budget in (6, 999):
        config = SchedulerConfig(token_budget=budget, max_running=4, decode_reserve_blocks=0)
        stage = engine(
            ask(0, range(1, 17)), ask(1, range(1, 18), at=900), gpu=9, scheduler=config
        ).play()
        stored = [e.keys for e in stage.events if isinstance(e, BlocksStored)]
        if budget == 6:  # chunks of 6, 6 and 4 tokens
            assert list(map(len, stored)) == [1, 2, 1]
        kept.append([key for keys in stored for key in keys])
        assert stage.records[1].num_gpu_hit_blocks == 4
    assert kept[0] == kept[1] == [tuple(range(1, end)) for end in (5, 9, 13, 17)]


def test_a_hit_does_not_shift_what_is_kept() -> None:
    stage = engine(
        ask(0, range(1, 5)), ask(1, range(1, 17), at=50), ask(2, range(1, 18), at=99), gpu=9
    ).play()
    assert [record.num_gpu_hit_blocks for record in stage.records.values()] == [0, 1, 4]
    assert stage.slices() == [(0, 0, 4), (1, 4, 12), (2, 16, 1)]


# I1: one request is counted many times in the hit rate


def test_a_request_is_counted_once_however_often_it_is_tried() -> None:
    config = SchedulerConfig(token_budget=5, max_running=4, decode_reserve_blocks=0)
    stage = engine(
        ask(0, range(1, 9)),
        ask(1, range(60, 64), at=100),
        ask(2, range(1, 21), num_output_tokens=1, at=100),
        gpu=5,
        scheduler=config,
    )
    for now in (0, 0):
        stage.step(now)
        stage.answer(stage.forward, at=now)
    # 1 fails five times and holds one block; 2 needs three beside its hits, and is turned away.
    for now in range(100, 105):
        stage.step(now)
        stage.answer(stage.forward, Outcome.FAILED, at=now)
        assert stage.manager.match([tuple(range(1, 5))]) == (0,)
    stage.step(105)
    stage.answer(stage.forward, at=110)
    # Three chunks, the last of which is lost: it starts again.
    for outcome in (Outcome.DONE, Outcome.DONE, Outcome.FAILED):
        stage.step(111)
        stage.answer(stage.forward, outcome, at=112)
    stage.finish_all(113)
    assert [s for s in stage.slices() if s[0] == 2] == [
        (2, 8, 5),
        (2, 13, 5),
        (2, 18, 2),
        (2, 16, 4),
    ]
    record = stage.records[2]
    assert record.num_attempts == 2
    # 20 + 8 + 4 tokens asked for, 8 hit: once. What the second attempt finds is counted apart.
    assert (record.num_gpu_hit_blocks, record.num_cpu_hit_blocks) == (2, 0)
    assert record.num_rematched_blocks == 4
    assert sum(each.num_gpu_hit_blocks for each in stage.records.values()) == 2


def test_hits_and_computed_tokens_add_up_to_the_prompt() -> None:
    requests = [ask(i, [*range(1, 5 + 4 * (i % 4)), 90 + i], at=40 * i) for i in range(12)]
    stage = engine(*requests, gpu=6, cpu=3).play()
    computed = {request.request_id: 0 for request in requests}
    for request_id, _, num_tokens in stage.slices():
        computed[request_id] += num_tokens
    for request_id, record in stage.records.items():
        hits = record.num_gpu_hit_blocks + record.num_cpu_hit_blocks
        assert 4 * hits + computed[request_id] == record.request.num_input_tokens
        assert record.num_attempts == 1


# J4: hits below move the hit rate, but not the latency


def first_token_after(found: str, *, num_gpus: int) -> tuple[int, int]:
    """Return the time to the first token of a prompt of 4,096 known tokens and one more, and how
    long its blocks took to come up; in ns.
    """
    model = find_model("llama-3.1-8b")  # 32 layers, 8 KV heads of 128, bf16: 131,072 bytes a token
    link = LinkConfig(bytes_per_second=25 * 10**9, latency_ns=0, overhead_ns=0)
    hardware = replace(find_hardware("h200-8x"), num_gpus=num_gpus, host_link=link)
    cost = RooflineCost(model, hardware, block_size=512)
    known = range(4096)
    first = range(10_000, 14_096) if found == "nothing" else known
    requests = [ask(0, first, block_size=512)]
    if found == "below":  # 18 blocks push the 8 of the first down
        requests.append(ask(1, range(20_000, 29_216), at=10**9, block_size=512))
    last = [*known, 9999]
    requests.append(ask(2, last, at=10**10, block_size=512))
    cache = CacheConfig(
        block_size=512, tier_blocks=(18, 99), swap_batch_blocks=9, low_watermark_blocks=0
    )
    scheduler = SchedulerConfig(token_budget=10_000, decode_reserve_blocks=0)
    stage = Engine(requests, cache, scheduler).play(cost=cost, link=link)
    record = stage.records[2]
    assert record.num_gpu_hit_blocks == (8 if found == "above" else 0)
    assert record.num_cpu_hit_blocks == (8 if found == "below" else 0)
    # What is computed is the prompt less the hits of all tiers.
    assert stage.slices()[-1] == ((2, 0, 4097) if found == "nothing" else (2, 4096, 1))
    ups = {op.op_id for op in stage.transfers if op.target.tier == 0}
    (*_, load_ns) = [0] + [
        each.finished_at - each.started_at
        for each in stage.answers
        if isinstance(each, Completion) and each.op_id in ups
    ]
    assert record.first_token_at is not None
    assert record.admitted_at is not None
    return record.first_token_at - record.admitted_at, load_ns


@pytest.mark.parametrize("num_gpus", [1, 2])
def test_a_hit_below_is_slower_than_one_above_and_faster_than_none(num_gpus: int) -> None:
    above, _ = first_token_after("above", num_gpus=num_gpus)
    below, load_ns = first_token_after("below", num_gpus=num_gpus)
    nothing, _ = first_token_after("nothing", num_gpus=num_gpus)
    assert above < below < nothing
    # 4,096 * 131,072 bytes at 25 GB/s: 21.47 ms, and half of it on each of two ranks.
    assert load_ns == -(-4096 * 131_072 // (25 * num_gpus))
    assert load_ns < below < load_ns + above


# J7: the same seed gives another result


def test_the_same_run_is_the_same_byte_for_byte_whatever_the_hash_seed() -> None:
    logs = []
    for hash_seed in ("0", "1", "4242"):
        done = subprocess.run(
            [sys.executable, "-m", "tests.unit.mixed_workload"],
            env={"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(REPOSITORY)},
            cwd=REPOSITORY,
            capture_output=True,
            check=True,
        )
        logs.append(done.stdout)
    assert logs[0] == logs[1] == logs[2]
    # It is a run in which things happen.
    for word in (b"RESTARTED", b"PREEMPTED", b"DEMOTED", b"PROMOTED", b"EVICTED", b"timed_out"):
        assert word in logs[0], word


# K1: the granularity of several cache groups silently gives no hits


def test_several_cache_groups_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="num_groups must be 1, not 2: hybrid models"):
        CacheConfig(num_groups=2)

"""Predicted against measured, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

import kvsim
from kvsim.analysis.records import TransferRecord
from kvsim.backends.sim import SimBackend
from kvsim.config import LinkConfig
from kvsim.core.ops import Place, Transfer
from kvsim.cost import LinearCost
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import resolve
from kvsim.validation.compare import Pair, bootstrap, compare
from kvsim.validation.predict import Prediction, ScaledCost, ThinkingBackend, predict
from tests.unit.calibration.made import calibration, line

UP, DOWN = (1, 0), (0, 1)


def record(way: tuple[int, int], num_blocks: int, copy_ns: int | None) -> TransferRecord:
    """Return a copy issued at 1000 ns that ends at 1500 ns."""
    return TransferRecord(
        0, *way, num_blocks, 1_000, 1_100, 1_500, "done", None, None, copy_ns=copy_ns
    )


def test_sums_are_of_what_each_copy_takes_by_itself() -> None:
    run = kvsim.replay("sample:chat", limit=3, gpu_blocks=1000)
    measured = (
        record(UP, 4, 200_000),
        record(DOWN, 10, 150_000),
        record(DOWN, 30, 250_000),
        record(DOWN, 99, None)._replace(outcome="failed"),
    )
    predicted = Prediction(run.records, (record(UP, 4, None), record(DOWN, 40, None)))
    found = compare(replace(run, transfer_records=measured), predicted, calibration(), seed=0)
    # Up 100,000 ns and 1 ns a block, down 300,000 ns and 2 ns a block.
    assert found.swap_in.total_ns == Pair(100_004, 200_000)
    assert found.swap_in.same_ops == Pair(100_004, 200_000)
    assert found.swap_in.interval is None  # of one copy nothing can be drawn
    assert found.swap_out.count == Pair(1, 2)
    assert found.swap_out.blocks == Pair(40, 40)
    assert found.swap_out.total_ns == Pair(300_080, 400_000)
    assert found.swap_out.same_ops == Pair(300_020 + 300_060, 400_000)
    assert found.swap_out.waited_ns == Pair(500, 1_000)
    assert found.ttft_mean_ms.ratio == found.hit_rate.ratio == 1


def test_nothing_measured_has_no_ratio() -> None:
    assert Pair(3, 0).ratio is None
    assert Pair(3, 4).ratio == 0.75


def test_an_interval_is_as_wide_as_the_copies_differ() -> None:
    rng = np.random.default_rng(0)
    assert bootstrap([1, 2, 3], [2, 4, 6], rng) == pytest.approx((0.5, 0.5))
    assert bootstrap([1.0], [2.0], rng) is None
    # Half of the copies took twice as long: 100 over 100 + 50 +- 5 (sd of 100 draws of 0 or 1).
    found = bootstrap([1.0] * 100, [1.0, 2.0] * 50, rng)
    assert found is not None
    low, high = found
    assert 0.60 < low < 2 / 3 < high < 0.72


def test_steps_are_as_much_faster_as_in_the_run_and_take_what_ranks_need_besides() -> None:
    cost = ScaledCost(
        inner=LinearCost(step_ns=1_000),
        time_scale=10,
        step=line(500, 7),
        turn_ns=200,
        block_size=16,
        block_bytes=4096,
        num_layers=4,
    )
    # 1000 / 10, and 500 - 200 (the engine's own part), and 7 for each of 3 whole blocks.
    assert cost.forward_ns(50, 0, 0, 0, 1) == 100 + 300 + 21
    assert replace(cost, time_scale=None).forward_ns(50, 0, 0, 0, 1) == 321
    assert replace(cost, turn_ns=10_000).forward_ns(50, 0, 0, 0, 1) == 100
    assert cost.transfer_bytes(3) == 3 * 4096


def test_what_ends_while_the_engine_thinks_is_answered_together() -> None:
    # A copy of n blocks takes n ns. The engine thinks for 10 ns.
    link = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0)
    backend = ThinkingBackend(SimBackend(LinearCost(), links=link), turn_ns=10)
    tiers = [Place(instance=number, tier=0) for number in range(4)]
    for op_id, (target, num_blocks) in enumerate(zip(tiers[1:], (5, 14, 16), strict=True)):
        ids = tuple(range(num_blocks))
        backend.submit(Transfer(op_id, tiers[0], target, ids, ids))
    assert [answer.op_id for answer in backend.wait(None)] == [0, 1]  # at 5 and 14
    assert backend.now() == 15
    assert [answer.op_id for answer in backend.wait(None)] == [2]
    assert backend.now() == 26
    assert backend.wait(None) == ()
    backend.close()


def test_a_prediction_repeats_itself_and_swaps() -> None:
    trace = kvsim.sample("chat")
    trace = replace(trace, requests=trace.requests[:80])
    asked = ReplayConfig(backend="paddle", ranks=2, time_scale=20, gpu_blocks=400, cpu_blocks=900)
    config = resolve(asked, trace)
    found = [predict(config, trace, calibration()) for _ in range(2)]
    assert found[0] == found[1]
    assert len(found[0].requests) == 80
    # A write-back takes at least what the line says, its wait included.
    down = [each for each in found[0].transfers if each.source == 0]
    assert down
    assert min(each.finished_at - each.started_at for each in down) >= 340_000

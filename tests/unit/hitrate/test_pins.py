from __future__ import annotations

import json
from dataclasses import replace

import pytest

import kvsim
from kvsim.errors import ConfigError
from kvsim.hitrate import pin_effect
from tests.unit.stories import SECOND_NS, trace_of


def test_without_requests_in_flight_there_is_no_difference() -> None:
    # 1,000 s apart: each is done long before the next.
    trace = trace_of(("abc", 12), ("de", 8), ("abc", 12), gap_ns=1000 * SECOND_NS)
    effect = pin_effect(trace, [4, 5, 9], loads=[1, 2])
    assert effect.largest_points("block") == 0
    assert [point.timed["block"]["hits"] for point in effect.points] == [2, 3, 3] * 2


def test_blocks_that_requests_hold_cost_hits() -> None:
    # The first prompts of the sample, 40 times as fast: with so little room they are in each
    # other's way.
    trace = replace(kvsim.sample(), requests=kvsim.sample().requests[:400])
    effect = pin_effect(trace, [300], loads=[1, 40])
    calm, busy = (point.difference_points("block") for point in effect.points)
    assert busy < calm
    assert effect.largest_points("block") == max(abs(calm), abs(busy))
    assert effect.frame["load"].unique().tolist() == [1.0, 40.0]
    assert effect.frame.attrs["in_flight"] == "no requests in flight"
    assert json.dumps(effect.to_dict())
    assert "40 x" in effect._repr_html_()


def test_settings_of_the_simulation_are_passed_on() -> None:
    trace = trace_of(("abc", 12), ("abc", 12), gap_ns=1000 * SECOND_NS)
    effect = pin_effect(trace, [9], warmup=0.5, policy="fifo", token_budget=512)
    assert effect.policy == "fifo"
    assert effect.points[0].timed["block"] == {"hits": 3, "total": 3, "rate": 1.0}
    assert effect.points[0].instant == effect.points[0].timed


def test_the_sizes_of_the_tiers_are_the_capacities() -> None:
    trace = trace_of(("abc", 12))
    with pytest.raises(ConfigError, match="cpu_blocks cannot be set here"):
        pin_effect(trace, [9], cpu_blocks=3)
    with pytest.raises(ConfigError, match="limit cannot be set here: give a shorter trace"):
        pin_effect(trace, [9], limit=1)
    with pytest.raises(ConfigError, match="loads must have at least one number"):
        pin_effect(trace, [9], loads=[])
    with pytest.raises(ConfigError, match="speed must be above 0"):
        pin_effect(trace, [9], loads=[0])

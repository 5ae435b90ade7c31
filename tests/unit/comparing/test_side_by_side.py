from __future__ import annotations

import pandas as pd
import pytest

import kvsim
from kvsim.comparing import side_by_side
from kvsim.errors import ConfigError
from tests.unit.stories import back_from_below


def test_each_run_has_a_row_in_the_order_given() -> None:
    story = back_from_below()
    small = kvsim.replay(story, gpu_blocks=3)
    large = kvsim.replay(story, gpu_blocks=3, cpu_blocks=3)
    frame = side_by_side({"small": small, "large": large})
    assert list(frame.index) == ["small", "large"]
    # The third of three prompts of three blocks is found below as a whole, if there is a below.
    assert frame["hit_rate"].tolist() == [0.0, pytest.approx(1 / 3)]
    assert frame["cpu_hit_rate"].tolist() == [0.0, pytest.approx(1 / 3)]
    assert frame["gpu_hit_rate"].tolist() == frame["disk_hit_rate"].tolist() == [0.0, 0.0]
    assert large.swaps is not None
    assert frame["swap_in_gib"].tolist() == [0.0, large.swaps["swap_in"]["bytes"] / 2**30]
    assert large.swaps["swap_in"]["bytes"] > 0
    assert frame["disk_out_gib"].tolist() == [0.0, 0.0]


def test_an_instant_run_has_hits_and_no_times() -> None:
    frame = side_by_side({"at once": kvsim.replay(back_from_below(), gpu_blocks=3, instant=True)})
    assert frame["hit_rate"].tolist() == [0.0]
    assert frame[["ttft_mean_ms", "swap_in_gib"]].isna().all(axis=None)
    assert frame["ttft_mean_ms"].dtype == pd.Float64Dtype()


def test_no_runs_are_refused() -> None:
    with pytest.raises(ConfigError, match="at least one run"):
        side_by_side({})

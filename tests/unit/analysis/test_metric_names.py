from __future__ import annotations

import re
from pathlib import Path

import pytest

import kvsim
from kvsim.analysis.metric_names import METRICS, NAMES, Kind, as_text
from kvsim.errors import UnknownNameError
from tests.unit.stories import back_from_below, three_prompts

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_and_the_table_say_the_same() -> None:
    rows = re.findall(r"^\| `(kvsim_\w+)` \| (\w+) \| (.*) \|$", PAGE.read_text("utf-8"), re.M)
    told = [
        (
            each.name,
            str(each.kind),
            " | ".join(
                (
                    f"`{each.fastdeploy}`" if each.fastdeploy else "-",
                    f"`{each.vllm}`" if each.vllm else "-",
                    each.meaning + (f"; {each.note}" if each.note else ""),
                )
            ),
        )
        for each in METRICS
    ]
    assert rows == told


def test_a_name_means_one_thing() -> None:
    for names in NAMES:
        known = [name for each in METRICS if (name := each.name_in(names))]
        assert len(known) == len(set(known))
    assert all(each.name.endswith("_total") == (each.kind is Kind.COUNTER) for each in METRICS)


def test_figures_worked_out_by_hand() -> None:
    # abc of 12 tokens, def of 12, abc of 12 found below; each makes one token.
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    values = result.metrics()
    assert values["kvsim_requests_total"] == values["kvsim_requests_finished_total"] == 3
    assert values["kvsim_query_tokens_total"] == 36
    assert values["kvsim_lower_hit_tokens_total"] == values["kvsim_hit_tokens_total"] == 12
    assert values["kvsim_lower_query_tokens_total"] == 36  # nothing was found on the GPU
    assert values["kvsim_generation_tokens_total"] == 3
    assert values["kvsim_window_hit_request_ratio"] == 1 / 3
    assert values["kvsim_gpu_free_blocks"] == 0
    assert values["kvsim_gpu_usage_ratio"] == 1.0
    assert values["kvsim_time_to_first_token_seconds_count"] == 3
    ttft = result.requests["ttft_ms"].sum() / 1000
    assert values["kvsim_time_to_first_token_seconds_sum"] == pytest.approx(ttft)
    parts = values["kvsim_queue_seconds_sum"] + values["kvsim_prefill_seconds_sum"]
    assert parts == pytest.approx(ttft)


def test_the_same_figures_have_other_names() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    fastdeploy, vllm = (result.metrics(names=names) for names in ("fastdeploy", "vllm"))
    assert fastdeploy["fastdeploy:prefix_cpu_cache_token_num"] == 12
    assert fastdeploy["fastdeploy:hit_token_rate"] == 12 / 36
    assert fastdeploy["fastdeploy:max_gpu_block_num"] == 3
    assert vllm["vllm:external_prefix_cache_hits_total"] == 12
    assert vllm["vllm:prefix_cache_queries_total"] == 36
    assert all(name.startswith("vllm:") for name in vllm)


def test_what_a_run_without_events_does_not_know_is_left_out() -> None:
    values = kvsim.replay(three_prompts(), gpu_blocks=5).metrics()
    assert "kvsim_gpu_free_blocks" not in values
    assert values["kvsim_gpu_blocks"] == 5


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'vllm'"):
        kvsim.replay(three_prompts(), gpu_blocks=5).metrics(names="vlm")


def test_gauges_are_those_of_the_steps_and_the_window_so_far() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    gauges = result.gauges(window=2)
    # After the first query nothing is found, nor after the second; the third begins a window.
    assert gauges["kvsim_window_hit_token_ratio"].tolist() == [0.0, 0.0, 1.0]
    assert gauges["kvsim_gpu_free_blocks"].tolist() == [0.0, 0.0, 0.0]
    assert gauges["kvsim_requests_running"].tolist() == [1.0, 1.0, 1.0]
    assert "fastdeploy:free_gpu_block_num" in result.gauges(names="fastdeploy").columns


def test_the_text_is_what_prometheus_reads() -> None:
    result = kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=3, events=True)
    for names in NAMES:
        values = result.metrics(names=names)
        text = as_text(values, names)
        lines = text.splitlines()
        assert text.endswith("\n")
        samples = dict(line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
        assert {name: float(value) for name, value in samples.items()} == values
        name = "[a-z0-9_:]+"
        kinds = "counter|gauge|summary"
        known = rf"# HELP {name} \S.*|# TYPE {name} ({kinds})|{name} [0-9.e-]+"
        for line in lines:
            assert re.fullmatch(known, line), line

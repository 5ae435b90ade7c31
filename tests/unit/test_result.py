from __future__ import annotations

import json
import re
from pathlib import Path

import pandas as pd
import pytest
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

import kvsim
from kvsim.analysis.frames import REQUEST_COLUMNS, TRANSFER_COLUMNS
from kvsim.analysis.metrics import DEFINITIONS
from kvsim.analysis.steps import RESIDENCY_COLUMNS, STEP_COLUMNS, use_columns
from kvsim.errors import UserError
from tests.unit.stories import back_from_below, three_prompts

ROOT = Path(__file__).parents[2]
PLOTS, TABLES = ["hits.png", "ttft.png"], ["requests.parquet", "transfers.parquet"]


def two_tiers() -> kvsim.ReplayResult:
    return kvsim.replay(back_from_below(), gpu_blocks=3, cpu_blocks=6, swap_batch_blocks=1)


def files(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.rglob("*"))


# -- the summary


def test_the_summary_has_every_figure_under_its_name() -> None:
    summary = json.loads(two_tiers().to_json())
    assert summary["requests"] == {
        "total": 3, "finished": 3, "refused": 0, "cancelled": 0, "failed": 0,
    }  # fmt: skip
    assert list(summary["hits"]) == sorted(DEFINITIONS) == sorted(summary["definitions"])
    assert summary["hits"]["block"] == {"hits": 3, "total": 9, "rate": 1 / 3}
    assert summary["tiers"]["cpu"]["hits"]["prefix_token"]["hits"] == 12
    assert summary["tiers"]["gpu"]["capacity_blocks"] == 3
    assert list(summary["ttft_ms"]) == ["mean", "p50", "p90", "p99"]
    assert summary["transfers"]["swap_in"]["blocks"] == 3
    assert summary["rules"] == {"partial": "count", "swap_in": "overlap"}
    assert summary["warmup"] == {"requests": 0, "share": 0.0}
    assert summary["config"]["gpu_blocks"] == 3
    assert (summary["preemptions"], summary["duplicate_blocks"], summary["notes"]) == (0, 0, [])
    assert summary["trace"]["name"] == "story"


def test_two_runs_differ_in_their_provenance_only() -> None:
    one, other = (json.loads(two_tiers().to_json()) for _ in range(2))
    assert set(one.pop("provenance")) == {
        "git_commit", "kvsim_version", "python_version", "run_s", "trace", "trace_sha256", "wall_s",
    }  # fmt: skip
    del other["provenance"]
    assert one == other


def test_an_instant_replay_has_no_latency_and_no_transfers() -> None:
    result = kvsim.replay(three_prompts(), gpu_blocks=9, instant=True)
    summary = json.loads(result.to_json())
    assert (summary["ttft_ms"], summary["transfers"], summary["clock"]) == (None, None, "none")
    assert len(result.transfers) == 0
    with pytest.raises(UserError, match="an instant replay has no clock"):
        result.plot_ttft()


# -- frames


def test_the_frames_have_one_row_for_each() -> None:
    result = two_tiers()
    assert result.requests["request_id"].tolist() == [0, 1, 2]
    assert result.requests["num_cpu_hit_blocks"].tolist() == [0, 0, 3]
    assert len(result.transfers) == len(result.transfer_records)
    up = result.transfers[result.transfers["direction"] == "swap_in"]
    assert up["num_bytes"].sum() == 3 * 4 * 131_072  # blocks, tokens, bytes of K and V
    assert (up["num_bytes_per_rank"] * 8).tolist() == up["num_bytes"].tolist()
    assert set(result.requests["clock"]) == set(result.transfers["clock"]) == {"virtual"}


def test_the_documentation_lists_every_column_with_its_dtype() -> None:
    page = (ROOT / "docs" / "results.md").read_text(encoding="utf-8")
    kinds = "bool|string|[iI]nt64|[fF]loat64"
    listed = re.findall(rf"^\| `(\w+)` \| ({kinds}) \|", page, re.MULTILINE)
    result = kvsim.replay(three_prompts(), gpu_blocks=5, events=True)
    misses = kvsim.attribute_misses(result).frame
    paired = kvsim.compare(result, result).frame
    kept = paired[["request_id", "arrived_at_ns", "num_input_tokens"]]
    told = kept.join(paired[["session_id", "largest_change"]])
    assert listed == [
        *REQUEST_COLUMNS.items(),
        *TRANSFER_COLUMNS.items(),
        *STEP_COLUMNS.items(),
        # One of each kind stands for those of all tiers and uses, which its text names.
        ("num_gpu_hit_blocks", "int64"),
        ("num_gpu_free_blocks", "int64"),
        ("clock", "string"),
        *RESIDENCY_COLUMNS.items(),
        *((name, str(kind)) for name, kind in misses.dtypes.items()),
        *((name, str(kind)) for name, kind in told.dtypes.items()),
    ]
    assert all(f"`{name}`" in page for name in use_columns(1))
    phases = [name.removesuffix("_a") for name in paired.columns if name.endswith("_a")]
    assert all(f"`{name}`" in page for name in phases)


# -- for people


def test_a_notebook_shows_the_figures_and_no_raw_text() -> None:
    html = kvsim.replay(three_prompts(), gpu_blocks=2, warmup=0.5, policy="fifo")._repr_html_()
    assert "<b>story: 3 requests, 4 tokens a block; fifo, llama-3.1-8b on h200-8x</b>" in html
    # Without the first: 5 references, none of them hit in 2 blocks.
    assert '<td style="text-align:left">block</td><td style="text-align:right">0</td>' in html
    assert "the first 1 are not in the hits" in html
    assert "<li>2 requests were refused" in html


def test_the_text_form_is_one_line() -> None:
    assert repr(kvsim.replay(three_prompts(), gpu_blocks=9)) == (
        "<ReplayResult story: 3 requests, 4 tokens a block; lru, llama-3.1-8b on h200-8x;"
        " prefix_token 53.85%>"  # 14 of 26 tokens
    )


def test_names_are_escaped_in_html() -> None:
    trace = three_prompts()
    odd = type(trace)(
        requests=trace.requests, block_size=4, partial=trace.partial, name="<b>", format="x"
    )
    assert "<b>&lt;b&gt;: 3 requests" in kvsim.replay(odd, gpu_blocks=9)._repr_html_()


def test_the_plots_are_captioned_and_drawn_into_given_axes() -> None:
    before = plt.get_fignums()
    result = kvsim.replay(three_prompts(), gpu_blocks=9, seed=4)
    for plot in (result.plot_ttft, result.plot_hits):
        ax = Figure().add_subplot()
        assert plot(ax=ax) is ax
        assert ax.texts[-1].get_text() == (
            "trace story · lru · 9 GPU + 0 CPU blocks of 4 tokens · clock: virtual · seed 4"
        )
    assert plt.get_fignums() == before


# -- files


def test_a_result_is_saved_as_json_tables_and_plots(tmp_path: Path) -> None:
    result = two_tiers()
    result.save(tmp_path / "out")
    assert files(tmp_path / "out") == sorted([*PLOTS, *TABLES, "run.json"])
    summary = json.loads((tmp_path / "out" / "run.json").read_text())
    assert summary == json.loads(result.to_json())
    for name, frame in zip(TABLES, (result.requests, result.transfers), strict=True):
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "out" / name), frame)
    assert (tmp_path / "out" / "ttft.png").read_bytes().startswith(b"\x89PNG")


def test_an_instant_replay_is_saved_without_times(tmp_path: Path) -> None:
    kvsim.replay(three_prompts(), gpu_blocks=9, instant=True).save(tmp_path / "out")
    assert files(tmp_path / "out") == sorted(["hits.png", *TABLES, "run.json"])


def test_a_save_that_is_interrupted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Figure, "savefig", interrupt)  # the last thing that is written
    with pytest.raises(KeyboardInterrupt):
        two_tiers().save(tmp_path / "out")
    assert files(tmp_path) == []


def test_saving_again_replaces_the_files(tmp_path: Path) -> None:
    kvsim.replay(three_prompts(), gpu_blocks=9).save(tmp_path)
    (tmp_path / "mine.txt").write_text("stays")
    two_tiers().save(tmp_path)
    assert json.loads((tmp_path / "run.json").read_text())["config"]["gpu_blocks"] == 3
    assert "mine.txt" in files(tmp_path)

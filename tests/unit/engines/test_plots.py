from __future__ import annotations

from kvsim.engines import explain
from tests.unit.engines.test_replays import STORY
from tests.unit.stories import trace_of


def test_each_rule_is_named_once_and_each_engine_has_its_figure() -> None:
    ax = explain(trace_of(*STORY), gpu_blocks=6).plot()
    legend = ax.get_legend()
    assert legend is not None
    labels = [text.get_text() for text in legend.get_texts()]
    assert labels[0] == "kvsim block 38.46%"  # 5 of 13
    assert len(labels) == len(set(labels)) == 6
    assert [tick.get_text() for tick in ax.get_yticklabels()] == [
        "vllm", "sglang", "lmcache", "fastdeploy",
    ]  # fmt: skip
    figures = [text.get_text() for text in ax.texts]
    # 16, 16, 16 and 20 of 52 tokens
    assert figures[:4] == ["30.77%", "30.77%", "30.77%", "38.46%"]

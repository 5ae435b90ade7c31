"""docs/sweeps.md names what there is."""

from __future__ import annotations

import re
from pathlib import Path

from kvsim.sweeping.result import COMPARISON_COLUMNS, FRAME_COLUMNS, PLACE_COLUMNS

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def columns_under(heading: str) -> dict[str, str]:
    section = PAGE.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))


def test_the_columns_of_the_frame_are_documented() -> None:
    assert columns_under("`table.frame` and `sweep.parquet`") == FRAME_COLUMNS


def test_the_columns_of_a_comparison_are_documented() -> None:
    own = {name: dtype for name, dtype in COMPARISON_COLUMNS.items() if name not in PLACE_COLUMNS}
    assert columns_under("Comparing policies") == own


def test_the_file_on_the_page_is_the_example() -> None:
    shown = PAGE.split("```toml\n")[1].split("```")[0]
    assert shown == (ROOT / "examples" / "sweep.toml").read_text(encoding="utf-8")

from __future__ import annotations

import re
from pathlib import Path

from kvsim.core.residency import TRANSITIONS

PAGE = Path(__file__).parents[3] / "docs" / "architecture.md"


def test_the_page_shows_the_copy_machine_as_it_is() -> None:
    rows = re.findall(
        r"^\| ([A-Z_]+) \| ([A-Z]+) \| ([A-Z]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    steps = [(event.name, old.name, new.name) for event, (old, new) in TRANSITIONS.items()]
    assert rows == steps

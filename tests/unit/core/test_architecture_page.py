from __future__ import annotations

import re
from pathlib import Path

from kvsim.core.residency import TRANSITIONS

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "architecture.md"
CORE = ROOT / "kvsim" / "core"


def test_the_page_shows_the_copy_machine_as_it_is() -> None:
    rows = re.findall(
        r"^\| ([A-Z_]+) \| ([A-Z]+) \| ([A-Z]+) \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE
    )
    steps = [(event.name, old.name, new.name) for event, (old, new) in TRANSITIONS.items()]
    assert rows == steps


def test_the_page_names_every_module_of_the_core() -> None:
    text = PAGE.read_text(encoding="utf-8")
    start = text.index("Inside the core")
    named = set(re.findall(r"`(\w+)`", text[start : text.index("\n## ", start)]))
    assert named == {path.stem for path in CORE.glob("[a-z]*.py")}

"""`tests/requirements.md` names a test for everything that is required, and each of them exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
PAGE = (REPOSITORY / "tests" / "requirements.md").read_text()

FAILURES = (
    "A1 A2 A4 A5 A6 A7 A8 A9 B1 B2 B5 C1 C2 C3 C5 C7 D1 D2 D3 D4 D5 D6 D9 E1 E2 E4 E5"
    " F1 F3 F4 F5 F6 F7 F10 G1 H1 H2 H3 H4 I1 I2 I4 J1 J2 J4 J7 K1"
)
IDS = [
    *(f"seed:B1.{number}" for number in range(1, 34)),
    *(f"seed:B2.{number}" for number in range(1, 13)),
    *(f"seed:B3.{number}" for number in range(1, 14)),
    *(f"acceptance:P{number}" for number in range(1, 14)),
    *(f"failure:{name}" for name in FAILURES.split()),
    *(f"invariant:{number}" for number in range(1, 21)),
    *(f"perf-defect:{number}" for number in range(1, 6)),
]


def rows() -> list[tuple[str, str, str]]:
    """Return (id, what must hold, tests) of every line of the tables."""
    lines = [line for line in PAGE.splitlines() if re.match(r"\| [a-z-]+:", line)]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [(name, rule, tests) for name, rule, tests in cells]


def named_tests() -> list[str]:
    """Return every test that the page names, each once."""
    return sorted(set(re.findall(r"`(tests/[^`]+)`", PAGE)))


def test_every_id_is_there_once_and_no_other() -> None:
    assert [name for name, _, _ in rows()] == IDS


@pytest.mark.parametrize(("name", "rule", "tests"), rows(), ids=[row[0] for row in rows()])
def test_what_has_no_test_says_why(name: str, rule: str, tests: str) -> None:
    assert rule.endswith("."), name
    if tests.startswith("not in this release: "):
        assert len(tests) > len("not in this release: ") + 10
    else:
        assert re.fullmatch(r"(`tests/[^`]+`(<br>)?)+", tests)


@pytest.mark.parametrize("node_id", named_tests())
def test_a_test_that_is_named_exists(node_id: str) -> None:
    path, *names = node_id.split("::")
    node: ast.AST = ast.parse((REPOSITORY / path).read_text())
    for name in names:  # of a class, if there is one, and of the test
        body = getattr(node, "body", [])
        inside = {
            each.name: each for each in body if isinstance(each, ast.ClassDef | ast.FunctionDef)
        }
        assert name in inside
        node = inside[name]

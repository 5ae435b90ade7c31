"""Finding a policy by what a person writes on a command line."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from kvsim.custom_policy import find_policy
from kvsim.errors import UserError
from kvsim.policies.lru import LRU

if TYPE_CHECKING:
    from pathlib import Path

SOURCE = """
from dataclasses import dataclass

@dataclass
class Coldest:
    context: object

limit = 3
"""


def test_a_name_without_a_colon_is_a_name() -> None:
    assert find_policy("lru") == "lru"


def test_a_class_is_found_in_an_installed_module() -> None:
    assert find_policy("kvsim.policies.lru:LRU") is LRU


def test_a_class_is_found_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "my policies.py"
    file.write_text(SOURCE, encoding="utf-8")
    found = find_policy(f"{file}:Coldest")
    assert getattr(found, "__name__", "") == "Coldest"


def test_a_class_is_found_in_a_module_of_the_working_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine_in_this_folder.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    found = find_policy("mine_in_this_folder:Coldest")
    assert getattr(found, "__name__", "") == "Coldest"
    assert sys.path == path
    monkeypatch.delitem(sys.modules, "mine_in_this_folder")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (":X", "must be module:Name, path/to/file.py:Name or a name"),
        ("kvsim:", "must be module:Name, path/to/file.py:Name or a name"),
        ("nothing_here:X", "no module 'nothing_here' in .* a file is named by its path"),
        ("kvsim.nothing:X", "no module 'kvsim.nothing' in "),
        ("nothing.py:X", r"no file 'nothing.py'"),
        ("kvsim.policies.lru:LRUU", r"kvsim.policies.lru has no 'LRUU'; did you mean 'LRU'\?"),
        ("kvsim.policies.lru:Xyz", "kvsim.policies.lru has no 'Xyz'$"),
        ("kvsim.types:NEVER", "NEVER is int 4611686018427387904, not a class or function"),
    ],
)
def test_what_cannot_be_found_is_said_in_one_line(text: str, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        find_policy(text)


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("x = (", r"cannot import .*mine.py, line 1: SyntaxError: '\(' was never closed"),
        ("import nothing_here", "cannot import .*mine.py: ModuleNotFoundError: No module named"),
        ("1 / 0", "cannot import .*mine.py: ZeroDivisionError: division by zero"),
    ],
)
def test_a_file_that_cannot_be_imported_is_named_with_the_reason(
    source: str, problem: str, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text(source, encoding="utf-8")
    with pytest.raises(UserError, match=problem):
        find_policy(f"{file}:Mine")
    assert "kvsim_policy_mine" not in sys.modules


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("import nothing_here", "cannot import broken_mine: ModuleNotFoundError"),
        ("1 / 0", "cannot import broken_mine: ZeroDivisionError"),
    ],
)
def test_a_module_that_cannot_be_imported_is_named_with_the_reason(
    source: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_mine.py").write_text(source, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=problem):
        find_policy("broken_mine:Mine")

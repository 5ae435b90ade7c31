from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.errors import UserError
from kvsim.saving import check_folder, new_files

if TYPE_CHECKING:
    from pathlib import Path


def names(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*"))


def save(folder: Path, **files: str) -> None:
    with new_files(folder, last="run") as temporary:
        for name, text in files.items():
            (temporary / name).write_text(text)


def test_files_arrive_together_in_a_folder_that_is_made(tmp_path: Path) -> None:
    save(tmp_path / "a" / "b", run="1", x="2")
    assert names(tmp_path) == ["a", "a/b", "a/b/run", "a/b/x"]


def test_files_of_the_same_name_are_replaced_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("old")
    (tmp_path / "other").write_text("old")
    save(tmp_path, x="new")
    assert (tmp_path / "x").read_text() == "new"
    assert names(tmp_path) == ["other", "x"]


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_nothing_is_left_if_the_writing_stops(tmp_path: Path, error: type[BaseException]) -> None:
    def write_and_stop() -> None:
        with new_files(tmp_path / "a" / "b", last="run") as temporary:
            (temporary / "x").write_text("half")
            raise error

    with pytest.raises(error):
        write_and_stop()
    assert names(tmp_path) == []


def test_what_others_put_into_a_new_folder_meanwhile_stays(tmp_path: Path) -> None:
    def write_and_stop() -> None:
        with new_files(tmp_path / "a" / "b", last="run"):
            (tmp_path / "a" / "theirs").write_text("1")
            raise KeyError

    with pytest.raises(KeyError):
        write_and_stop()
    assert names(tmp_path) == ["a", "a/theirs"]


def test_a_file_that_cannot_be_put_in_place_undoes_the_others(tmp_path: Path) -> None:
    (tmp_path / "out" / "run").mkdir(parents=True)  # a folder where a file is to go
    with pytest.raises(UserError, match="cannot save there"):
        save(tmp_path / "out", run="1", x="2")
    assert names(tmp_path / "out") == ["run"]


def test_a_file_is_no_folder(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("1")
    with pytest.raises(UserError, match="it is a file; name a folder"):
        check_folder(tmp_path / "x")
    with pytest.raises(UserError, match="x is a file; name a folder"):
        check_folder(tmp_path / "x" / "y" / "z")


def test_looking_changes_nothing(tmp_path: Path) -> None:
    assert check_folder(tmp_path / "a" / "b") == tmp_path / "a" / "b"
    assert names(tmp_path) == []

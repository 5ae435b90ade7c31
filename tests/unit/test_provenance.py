from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import kvsim
from kvsim.provenance import git_commit, provenance

if TYPE_CHECKING:
    from pathlib import Path

COMMIT = "0123456789abcdef0123456789abcdef01234567"


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_versions_and_the_trace_are_named() -> None:
    made = provenance(trace="x.jsonl", trace_sha256="ab", run_s=1.23456789, wall_s=2)
    assert (made.kvsim_version, made.python_version) == (
        kvsim.__version__,
        platform.python_version(),
    )
    assert (made.trace, made.trace_sha256, made.run_s) == ("x.jsonl", "ab", 1.234568)


def test_outside_a_checkout_there_is_no_commit(tmp_path: Path) -> None:
    assert git_commit(tmp_path) is None
    write(tmp_path / "bad" / ".git" / "HEAD", "ref: refs/heads/none")
    assert git_commit(tmp_path / "bad") is None


def test_the_commit_is_that_of_the_branch(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "HEAD", "ref: refs/heads/main\n")
    write(tmp_path / ".git" / "refs" / "heads" / "main", f"{COMMIT}\n")
    assert git_commit(tmp_path) == COMMIT


def test_a_branch_may_be_packed(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "HEAD", "ref: refs/heads/main\n")
    write(tmp_path / ".git" / "packed-refs", f"# pack-refs\n{COMMIT} refs/heads/main\n")
    assert git_commit(tmp_path) == COMMIT


def test_a_detached_head_names_the_commit_itself(tmp_path: Path) -> None:
    write(tmp_path / ".git" / "HEAD", f"{COMMIT}\n")
    assert git_commit(tmp_path) == COMMIT


def test_a_worktree_has_its_head_elsewhere(tmp_path: Path) -> None:
    write(tmp_path / "tree" / ".git", f"gitdir: {tmp_path}/main/.git/worktrees/tree\n")
    write(tmp_path / "main" / ".git" / "worktrees" / "tree" / "HEAD", "ref: refs/heads/side\n")
    write(tmp_path / "main" / ".git" / "worktrees" / "tree" / "commondir", "../..\n")
    write(tmp_path / "main" / ".git" / "refs" / "heads" / "side", COMMIT)
    assert git_commit(tmp_path / "tree") == COMMIT

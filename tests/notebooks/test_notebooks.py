"""Every notebook runs from top to bottom, and its committed copy shows what came out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import nbformat
import pytest
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read(path: Path) -> NotebookNode:
    """Return the notebook as it is committed."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def test_there_is_a_notebook() -> None:
    assert NOTEBOOKS


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
# The kernel talks to us over loopback TCP and says so; jupyter_client leaves its event loop open.
@pytest.mark.filterwarnings("default")
def test_a_notebook_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    notebook = read(path)
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()  # raises at the first cell that fails
    assert all(cell.execution_count for cell in notebook.cells if cell.cell_type == "code")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_committed_notebook_shows_its_outputs_and_ends_with_its_finding(path: Path) -> None:
    cells = read(path).cells
    assert cells[0].source.startswith("# ")
    assert "?" in cells[0].source.splitlines()[0]
    assert "Finding" in cells[-1].source
    assert "Limits" in cells[-1].source
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    assert any(cell.outputs for cell in code)

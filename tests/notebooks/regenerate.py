"""Run the notebooks and save what comes out: `python -m tests.notebooks.regenerate [NAME ...]`.

Run it in the root of the checkout, after a change of a notebook or of a figure, and read the diff.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Final

import nbformat
from nbclient import NotebookClient

if TYPE_CHECKING:
    from nbformat import NotebookNode

ROOT: Final = Path(__file__).parents[2]
NOTEBOOKS: Final = sorted((ROOT / "notebooks").glob("*.ipynb"))
TRACE_VARIABLE: Final = "KVSIM_NOTEBOOK_TRACE"
FAST_VARIABLE: Final = "KVSIM_NOTEBOOK_FAST"

_METADATA: Final = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def read(path: Path) -> NotebookNode:
    """Return the notebook as it is committed."""
    return nbformat.read(path, as_version=4)  # type: ignore[no-any-return, no-untyped-call]


def execute(
    notebook: NotebookNode, *, folder: Path, trace: Path | None = None, fast: bool = False
) -> None:
    """Run all cells in an empty folder, and keep nothing that another run would change.

    Parameters
    ----------
    folder
        Where it runs, and where the kernel keeps what it has to keep.
    trace
        The trace that it is to read. Default: its own, the sample.
    fast
        Whether one that runs on the wall clock is to make do with less.

    Raises
    ------
    CellExecutionError
        At the first cell that fails.
    """
    ours = {TRACE_VARIABLE, FAST_VARIABLE}
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    variables["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    variables["IPYTHONDIR"] = str(folder)
    variables["MPLBACKEND"] = "module://matplotlib_inline.backend_inline"  # plots are outputs
    if fast:
        variables[FAST_VARIABLE] = "1"
    if trace is not None:
        variables[TRACE_VARIABLE] = str(trace)
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        record_timing=False,
        resources={"metadata": {"path": str(folder)}},
    )
    client.execute(env=variables)
    notebook.metadata = nbformat.from_dict(_METADATA)  # type: ignore[no-untyped-call]


def main(names: list[str]) -> None:
    """Run the notebooks with these names, without the ending; all if none is named."""
    known = {path.stem: path for path in NOTEBOOKS}
    for name in names:
        if name not in known:
            sys.exit(f"there is no notebook {name!r}: {', '.join(known)}")
    for path in [known[name] for name in names] or NOTEBOOKS:
        notebook = read(path)
        with TemporaryDirectory() as folder:
            execute(notebook, folder=Path(folder))
        nbformat.write(notebook, path)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1:])

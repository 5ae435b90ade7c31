"""The Python call: `kvsim.sweep`. The command line makes the same one."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

from kvsim.sweeping.config import SweepConfig, load_sweep_file, sweep_config
from kvsim.sweeping.executors import LOCAL, running
from kvsim.sweeping.plan import plan
from kvsim.sweeping.result import SweepResult
from kvsim.sweeping.store import SweepFolder

if TYPE_CHECKING:
    from collections.abc import Callable
    from os import PathLike

    from kvsim.sweeping.cells import CellResult

__all__ = ["SweepConfig", "SweepResult", "sweep"]


def sweep(
    config: SweepConfig | Mapping[str, object] | str | PathLike[str],
    *,
    out: str | PathLike[str] | None = None,
    executor: str = LOCAL,
    scheduler: str | None = None,
    jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> SweepResult:
    """Replay each trace with each policy at each capacity, and return what came of it.

    Parameters
    ----------
    config
        A `SweepConfig`, a dict with its fields, or the path of a TOML file with them.
    out
        Folder for the results. What is finished there is not run again, so a sweep that was
        stopped goes on where it was. Default: nothing is saved.
    executor
        "local": processes on this machine. "dask": a Dask cluster. Or the name of a backend that
        is registered with joblib, such as "ray" after `ray.util.joblib.register_ray()`.
    scheduler
        Address of a Dask scheduler. Default: the current client, else a cluster of processes on
        this machine, which ends with the sweep. Who can talk to a Dask cluster can run code on
        it: use one that you trust.
    jobs
        How many processes are started on this machine. Default: one for each CPU.
    progress
        Called with (cells finished, cells in all).

    Returns
    -------
    SweepResult
        The same, to the byte, however many workers there were and in whichever order they ended.
        A cell that cannot run is a row that says why.

    Raises
    ------
    UserError
        If the sweep is not described well, a trace cannot be read, the results cannot be saved, or
        the workers cannot be had or are lost. Its message is one line.
    """
    planned = plan(_config(config))
    folder = None if out is None else SweepFolder(out)
    cells = {cell.digest: cell for cell in planned.cells}
    results: dict[str, CellResult] = {} if folder is None else folder.finished(cells)
    left = [cell for digest, cell in cells.items() if digest not in results]

    def tell() -> None:
        if progress is not None:
            progress(len(results), len(cells))

    tell()
    with ExitStack() as stack:
        arriving = running(left, executor=executor, scheduler=scheduler, jobs=jobs)
        for result in stack.enter_context(arriving):
            if folder is not None:
                folder.add(result)
            results[result.digest] = result
            tell()
    table = SweepResult(plan=planned, results=results)
    if folder is not None:
        table.save(folder.path)
    return table


def _config(config: SweepConfig | Mapping[str, object] | str | PathLike[str]) -> SweepConfig:
    if isinstance(config, SweepConfig):
        return config
    if isinstance(config, Mapping):
        return sweep_config(config, folder=Path())
    return load_sweep_file(config)

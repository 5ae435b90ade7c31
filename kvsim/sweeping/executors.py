"""Where the cells of a sweep run: local processes, a Dask cluster, or another joblib backend.

joblib and Dask move Python objects between their own processes as pickles, and whoever can talk
to such a process can run code in it. What kvsim starts itself listens on the loopback only; a
cluster of your own you must trust. kvsim itself unpickles nothing.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from threading import Event, Thread
from typing import TYPE_CHECKING, Any, Final

from kvsim.errors import ConfigError, UserError
from kvsim.sweeping.cells import run_cell

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator, Sequence

    from kvsim.sweeping.cells import Cell, CellResult

LOCAL: Final = "local"
DASK: Final = "dask"

_IDLE_S: Final = 60
"""After so many seconds without a cell a local worker ends; the pool starts another at need."""

_LOOK_S: Final = 1.0
"""How often a local worker looks whether its parent is there: within it, killed ones are gone."""

_LOOPBACK: Final = "127.0.0.1"


@contextmanager
def running(
    cells: Sequence[Cell], *, executor: str, scheduler: str | None, jobs: int | None
) -> Iterator[Iterator[CellResult]]:
    """Give the results of the cells, each as soon as it is there, in any order.

    Whatever ends the block, also Ctrl-C: the workers that this call has started end with it, and
    on a cluster of others the cells that are not running yet are given up.

    Parameters
    ----------
    executor
        "local", "dask", or the name of a backend that joblib knows.
    scheduler
        Address of a Dask scheduler, such as "tcp://127.0.0.1:8786". Default: the client that is
        current, else a cluster of local processes.
    jobs
        Processes, where they are started here. Default: one for each CPU.

    Raises
    ------
    UserError
        If the executor is unknown, not installed or cannot be reached, or a worker has died.
    """
    if scheduler is not None and executor != DASK:
        raise ConfigError(f"scheduler is for executor 'dask', and it is {executor!r}: leave it out")
    if jobs is not None and (isinstance(jobs, bool) or not isinstance(jobs, int) or jobs < 1):
        raise ConfigError(f"jobs must be an integer of at least 1, not {jobs!r}")
    if not cells:
        yield iter(())
        return
    joblib = _joblib()
    with ExitStack() as stack:
        if executor == LOCAL:
            if jobs != 1:  # one cell at a time needs no other process
                stack.callback(_end_local_workers)
            options: dict[str, Any] = {
                "backend": "loky",
                "initializer": _begin_worker,
                "initargs": (os.getpid(),),
                "idle_worker_timeout": _IDLE_S,
            }
        elif executor == DASK:
            options = {"backend": "dask", "client": stack.enter_context(_dask(scheduler, jobs))}
        else:
            options = {"backend": executor}
        num_jobs = -1 if jobs is None or executor == DASK else jobs
        yield stack.enter_context(_results(joblib, cells, options, num_jobs))


@contextmanager
def _results(
    joblib: Any,  # noqa: ANN401  (joblib has no types)
    cells: Sequence[Cell],
    options: dict[str, Any],
    num_jobs: int,
) -> Iterator[Iterator[CellResult]]:
    with _chosen(joblib, options):
        parallel = joblib.Parallel(
            n_jobs=num_jobs,
            return_as="generator_unordered",
            batch_size=1,  # a result is kept as soon as it is there
            max_nbytes=None,  # no array goes through a file
        )
        results: Generator[CellResult, None, None] = parallel(
            joblib.delayed(run_cell)(cell) for cell in cells
        )
        given = _translated(results)  # held here, so that nobody closes it before this block ends
        try:
            yield given
        finally:
            with warnings.catch_warnings():
                # That results are left is what an interruption is, and no mistake.
                warnings.filterwarnings("ignore", category=UserWarning, module="joblib")
                results.close()


def _translated(results: Iterator[CellResult]) -> Iterator[CellResult]:
    """Yield the results; the end of a worker becomes an error that says what to do."""
    try:
        yield from results
    except _losses() as error:
        raise UserError(
            f"a worker of the sweep has ended or cannot be reached ({type(error).__name__}); was"
            " there memory enough? Finished cells are kept: run the sweep again, with fewer jobs"
        ) from error


def _losses() -> tuple[type[BaseException], ...]:
    """Return what is raised in place of the results of a worker that is lost.

    A cell itself raises nothing. joblib: TerminatedWorkerError, a RuntimeError; Dask: KilledWorker,
    FutureCancelledError, CommClosedError (an OSError).
    """
    found: tuple[type[BaseException], ...] = (OSError, RuntimeError, CancelledError)
    dask = sys.modules.get("distributed")
    return found if dask is None else (*found, dask.KilledWorker)


def _begin_worker(parent: int) -> None:
    """Make a process of joblib's pool quiet, and let it end if its parent has been killed.

    Such a process waits for work on a pipe that it holds the other end of too, so that it would
    not notice.
    """
    silence_worker()
    Thread(target=_end_without, args=(parent,), daemon=True).start()


def _end_without(parent: int) -> None:
    never = Event()
    while os.getppid() == parent:
        never.wait(_LOOK_S)
    os._exit(1)


def silence_worker() -> None:
    """Send what a worker process prints nowhere, and leave Ctrl-C to the process that began it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nowhere, stream)
    os.close(nowhere)


def _joblib() -> Any:  # noqa: ANN401  (joblib has no types)
    try:
        import joblib
    except ImportError as error:
        raise ConfigError("a sweep needs joblib: pip install 'kvsim[sweep]'") from error
    return joblib


def _chosen(joblib: Any, options: dict[str, Any]) -> Any:  # noqa: ANN401  (joblib has no types)
    """Return the context in which joblib uses a backend."""
    try:
        return joblib.parallel_config(**options)
    except ValueError as error:
        raise ConfigError(
            "executor must be 'local', 'dask' or a backend that is registered with joblib, not"
            f" {options['backend']!r}"
        ) from error


def _end_local_workers() -> None:
    """End the processes of joblib's pool at once; else they would wait for more to do."""
    from joblib.externals.loky import get_reusable_executor

    get_reusable_executor(reuse=True).shutdown(wait=True, kill_workers=True)


@contextmanager
def _dask(scheduler: str | None, jobs: int | None) -> Iterator[Any]:
    """Give a client: the scheduler's, the current one, or that of a cluster made here."""
    try:
        from dask.distributed import Client, default_client
    except ImportError as error:
        raise ConfigError(
            "executor 'dask' needs dask.distributed: pip install 'kvsim[distributed]'"
        ) from error
    if scheduler is not None:
        try:
            client = Client(scheduler, set_as_default=False)
        except (OSError, ValueError) as error:
            raise UserError(f"no Dask scheduler answers at {scheduler!r}: {error}") from error
        with client:
            yield client
        return
    try:
        client = default_client()
    except ValueError:
        with _own_cluster(jobs) as client:
            yield client
        return
    yield client


@contextmanager
def _own_cluster(jobs: int | None) -> Iterator[Any]:
    import joblib
    from dask.distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=jobs or joblib.cpu_count(),
            threads_per_worker=1,  # a replay holds Python's lock from its beginning to its end
            processes=True,
            host=_LOOPBACK,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,  # what goes wrong comes as an exception
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        client.run(silence_worker)
        yield client

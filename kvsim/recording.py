"""Record a run as the list of its engine turns, and feed a recording to the core again.

A recording is all that a run depends on (LAW 3 of the architecture): the settings with policy and
seed, the requests, and in each turn the time that was read and the answers that were taken. It
also has what was decided, so that a rerun can tell whether everything is decided alike.
"""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Self, cast

from kvsim.backends.recorded import (
    DivergenceError,
    RecordedBackend,
    RecordingBackend,
    RecordingOverError,
    RecordingSink,
    TurnLog,
)
from kvsim.backends.turn_codec import Failure, Header
from kvsim.backends.turns import RecordingError, TurnReader, TurnWriter
from kvsim.building import build_core
from kvsim.collector import paused_collector
from kvsim.core.engine import run
from kvsim.errors import ConfigError, MisuseError, UnknownNameError, UserError
from kvsim.kept_run import Keeper
from kvsim.policies import policy_factory
from kvsim.run_file import config_of
from kvsim.saving import new_files
from kvsim.trace import Trace, annotate_next_use
from kvsim.trace.paths import checked_path, os_problem
from kvsim.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from os import PathLike
    from pathlib import Path
    from types import TracebackType

    from kvsim.backends.turn_codec import Settings, Turn
    from kvsim.core.ports import Backend, BlockPolicy, EventSink, EvictionPolicy, PolicyContext
    from kvsim.kept_run import KeptRun
    from kvsim.policies.registry import PolicyMaker
    from kvsim.replay_config import ReplayConfig

_BUFFER_BYTES: Final = 1 << 20  # a turn has some 700 bytes: one write to the system for 1500


@dataclass(frozen=True, slots=True)
class Recorder:
    """What goes around the backend and the sink of a run that is recorded. Made by `recorder`."""

    log: TurnLog

    def sink(self, onward: EventSink | None = None) -> EventSink:
        """Return the sink to give to manager and scheduler; it passes events on to `onward`."""
        return RecordingSink(self.log, onward)

    def backend(self, inner: Backend) -> Backend:
        """Return the backend to give to the engine in place of `inner`; closing it closes both."""
        return RecordingBackend(inner, self.log)


@contextmanager
def recorder(path: str | PathLike[str], config: ReplayConfig, trace: Trace) -> Iterator[Recorder]:
    """Record the run that happens within this context.

    The file appears at `path` when the context ends, over one that was there. If the run raised,
    the recording has the turn that was under way as far as it came, and ends with the error. If
    the run was stopped (Ctrl-C), or something could not be written, nothing is left.

    Parameters
    ----------
    path
        Of the file.
    config
        The settings as the run uses them: nothing left open, `policy` the name of its policy.
    trace
        The requests as the run takes them.

    Raises
    ------
    ConfigError
        If the replay is instant, and so has no turns, or msgspec is not installed.
    UserError
        If there cannot be a file at `path`, or something cannot be recorded.
    """
    file = checked_path(path)
    if config.instant:
        raise ConfigError("an instant replay has no turns to record; leave out instant")
    if config.gpu_blocks is None:
        raise MisuseError("a recording needs settings that leave nothing open: resolve() them")
    if file.is_dir():
        raise UserError(f"{file}: cannot save there: it is a folder; name a file")
    outcome = _Outcome()
    try:
        with (
            new_files(file.absolute().parent, last=file.name) as folder,
            (folder / file.name).open("wb", buffering=_BUFFER_BYTES) as stream,
        ):
            writer = TurnWriter(stream, file, _header(config, trace), trace.requests)
            log = TurnLog(writer)
            with outcome:
                yield Recorder(log)
            if outcome.error is not None and writer.is_broken:
                raise outcome.error
            log.flush()
            writer.end(_failure(outcome.error, by_backend=log.is_in_backend))
    except UserError as problem:
        if outcome.error is None or problem is outcome.error:
            raise
        outcome.error.add_note(f"And it could not be recorded: {problem}")
    if outcome.error is not None:
        raise outcome.error


@contextmanager
def open_recording(path: str | PathLike[str]) -> Iterator[TurnReader]:
    """Open a recording: what the run was given, and its turns one by one.

    Raises
    ------
    RecordingError
        If the file cannot be read or is not a recording; also while the turns are read.
    ConfigError
        If msgspec is not installed.
    """
    file = checked_path(path)
    try:
        with file.open("rb") as stream:
            yield TurnReader(stream, file)
    except OSError as error:
        raise RecordingError(os_problem(error), path=file) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class Rerun:
    """What came of feeding a recording to the core.

    Parameters
    ----------
    turns
        How many were recorded.
    compared
        Decisions, commands and events together, that came again and are the same.
    difference
        The first difference: the turn, what was recorded and what came now. None: all is alike.
    failure
        The error that the recorded run ended with; None: it ended well.
    error
        What the core raised now, with its traceback, or the `DivergenceError` raised where the
        decision was made; None: nothing.
    kept
        What came of the rerun, if it was to be kept.
    """

    turns: int
    compared: int
    difference: str | None
    failure: Failure | None
    error: Exception | None
    kept: KeptRun | None = None

    @property
    def identical(self) -> bool:
        """Whether every command and every event is the same, byte for byte, and the end too."""
        return self.difference is None

    @property
    def ended_well(self) -> bool:
        """Whether the recorded run came to its end."""
        return self.failure is None


def rerun(
    path: str | PathLike[str],
    *,
    policy: str | PolicyMaker | EvictionPolicy | BlockPolicy | None = None,
    keep: bool = False,
) -> Rerun:
    """Feed a recording to the core and compare what it decides with what was decided.

    The core is built from the settings and the requests in the file; the backend that ran then is
    not needed, and neither is its hardware. An error that the core raises is returned, since it
    may be the one that was recorded.

    Parameters
    ----------
    path
        The recording.
    policy
        As in `kvsim.replay`. Default: the recorded one, by its name.
    keep
        Whether to keep events and turns, as `Rerun.kept`.

    Raises
    ------
    RecordingError
        If the file is no recording, is damaged, or names a policy that is not known here.
    UserError
        If there is no policy as given, or msgspec is not installed.
    """
    with open_recording(path) as recording:
        config, trace = _told(recording)
        new_policy, needs_future = _policy(config, policy, recording.path)
        backend = RecordedBackend(turns := iter(recording))
        kept = Keeper(backend) if keep else None
        with paused_collector(), _Outcome() as outcome:
            core = build_core(
                config,
                annotate_next_use(trace) if needs_future else trace,
                new_policy,
                sink=backend if kept is None else kept,
            )
            run(core.decider, backend if kept is None else kept.backend)
        error = outcome.error
        if isinstance(error, RecordingError | MemoryError):
            raise error
        difference = _difference(backend, error, turns, recording)
        end = recording.end
    assert end is not None, "all turns have been read"
    return Rerun(
        turns=end.num_turns,
        compared=backend.num_compared,
        difference=difference,
        failure=end.failure,
        error=None if isinstance(error, RecordingOverError) else error,
        kept=None if kept is None else kept.run(config, trace, core.scheduler.ended),
    )


class _Outcome:
    """Keeps the error that a block raised, unless it asks for the end of the process (Ctrl-C)."""

    def __init__(self) -> None:
        self.error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        if not isinstance(error, Exception):
            return False
        self.error = error
        return True


def _header(config: ReplayConfig, trace: Trace) -> Header:
    return Header(
        kvsim_version=__version__,
        settings=cast("Settings", config.to_dict()),
        name=_utf8(trace.name),
        format=_utf8(trace.format),
        sha256=trace.sha256,
        block_size=trace.block_size,
        partial=trace.partial,
        num_requests=trace.num_requests,
    )


def _told(recording: TurnReader) -> tuple[ReplayConfig, Trace]:
    header = recording.header
    try:
        config = config_of(dict(header.settings))
        trace = Trace(
            requests=recording.requests,
            block_size=header.block_size,
            partial=header.partial,
            name=header.name,
            format=header.format,
            sha256=header.sha256,
        )
    except (UserError, TypeError) as error:
        raise RecordingError(f"it cannot be rerun: {error}", path=recording.path) from error
    if config.instant or config.gpu_blocks is None:
        raise RecordingError(
            "it cannot be rerun: its settings must not be instant, and must say gpu_blocks",
            path=recording.path,
        )
    return config, trace


def _policy(
    config: ReplayConfig,
    policy: str | PolicyMaker | EvictionPolicy | BlockPolicy | None,
    path: Path,
) -> tuple[Callable[[PolicyContext], EvictionPolicy], bool]:
    try:
        _, new_policy, needs_future = policy_factory(config.policy if policy is None else policy)
    except UnknownNameError as error:
        if policy is not None:
            raise
        raise RecordingError(
            f"its policy {config.policy!r} is not known by this name: give the policy itself to"
            " kvsim.recording.rerun(..., policy=...), or install its package",
            path=path,
        ) from error
    return new_policy, needs_future


def _difference(
    backend: RecordedBackend, error: Exception | None, turns: Iterator[Turn], recording: TurnReader
) -> str | None:
    """Return what is not as recorded; reads the recording to its end, which may be damaged."""
    if isinstance(error, DivergenceError):
        rest: str | None = str(error)
    else:
        try:
            backend.finish()
            rest = None
        except DivergenceError as left:
            rest = str(left)
    for _ in turns:
        pass
    was = None if recording.end is None else recording.end.failure
    if isinstance(error, DivergenceError) or _ends_alike(was, error):
        return rest
    now = "work is left" if isinstance(error, RecordingOverError) else "the run ended well"
    if error is not None and not isinstance(error, RecordingOverError):
        now = f"{type(error).__name__}: {error}"
    before = "the run ended well" if was is None else f"{was.kind}: {was.text}"
    return f"turn {backend.num_turns - 1}: recorded {before}, now {now}"


def _ends_alike(was: Failure | None, error: Exception | None) -> bool:
    if was is None:
        return error is None
    if was.by_backend:  # or by its close, after the last turn
        return error is None or isinstance(error, RecordingOverError)
    return error is not None and was == _failure(error, by_backend=False)


def _failure(error: Exception | None, *, by_backend: bool) -> Failure | None:
    if error is None:
        return None
    return Failure(kind=type(error).__name__, text=_utf8(str(error)), by_backend=by_backend)


def _utf8(text: str) -> str:
    """Return `text` so that a file can hold it: names of files may be no UTF-8."""
    return text.encode(errors="backslashreplace").decode()

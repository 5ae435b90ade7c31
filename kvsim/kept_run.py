"""What is kept of a rerun, if it is to be looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.analysis.records import record_of
from kvsim.analysis.timeline import TimelineBackend
from kvsim.backends.setup import Clock
from kvsim.saving import write_lines

if TYPE_CHECKING:
    from collections.abc import Iterable
    from os import PathLike

    from kvsim.analysis.records import RequestRecord
    from kvsim.analysis.steps import RunLog
    from kvsim.analysis.timeline import TurnRecord
    from kvsim.backends.recorded import RecordedBackend
    from kvsim.core.sequence import Sequence
    from kvsim.events import Event
    from kvsim.replay_config import ReplayConfig
    from kvsim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptRun:
    """The events, the turns and the requests of a rerun, as far as it came."""

    log: RunLog
    records: tuple[RequestRecord, ...]
    num_ranks: int
    name: str

    def perfetto(self, path: str | PathLike[str]) -> None:
        """Write it as a timeline that ui.perfetto.dev shows.

        Raises
        ------
        UserError
            If the file cannot be written.
        """
        from kvsim.analysis.perfetto import perfetto_lines

        lines = perfetto_lines(self.log, self.records, num_ranks=self.num_ranks, name=self.name)
        write_lines(path, lines)


class Keeper:
    """Passes events on to the recorded backend, and keeps them and the turns."""

    def __init__(self, onward: RecordedBackend) -> None:
        self._onward = onward
        self._events: list[Event] = []
        self._turns: list[TurnRecord] = []
        self.backend = TimelineBackend(onward, self._events, self._turns)

    def emit(self, event: Event) -> None:
        """Take one event."""
        self._events.append(event)
        self._onward.emit(event)

    def run(self, config: ReplayConfig, trace: Trace, ended: Iterable[Sequence]) -> KeptRun:
        """Return what was kept."""
        from kvsim.analysis.steps import RunLog

        self.backend.end_turn()
        records = sorted(map(record_of, ended), key=lambda each: each.request.request_id)
        is_real = config.clock is Clock.WALL
        return KeptRun(
            log=RunLog(
                events=self._events,
                turns=self._turns,
                requests=trace.requests,
                tier_blocks=config.tier_blocks,
                clock=config.clock.value,
            ),
            records=tuple(records),
            num_ranks=(config.ranks or 1) if is_real else config.machine.num_gpus,
            name=f"{trace.name}, rerun",
        )

"""One check of a backend: a scenario that holds it to a sentence of its contract."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass, field
from threading import Thread
from typing import TYPE_CHECKING, Final

from kvsim.errors import BackendContractError
from kvsim.testing.backends.contract import broken
from kvsim.testing.backends.spec import BackendTraits
from kvsim.testing.backends.witness import CallLog, Witness

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.config import FaultConfig
    from kvsim.core.ports import Backend
    from kvsim.testing.backends.contract import Sentence
    from kvsim.testing.backends.spec import BackendSpec

LONG_STEPS: Final = 500
LONG_STEP_TICKS: Final = 4
"""A run of 500 steps of 4 ticks is not over before a Cancel is heard: 4 s of real time."""

_DEFAULT_TRAITS: Final = BackendTraits()


class Stage:
    """Where a check is played: it makes backends to measure, and closes them after the check."""

    def __init__(
        self,
        make_backend: Callable[[BackendSpec], Backend],
        traits: BackendTraits,
        log: CallLog,
        closing: ExitStack,
    ) -> None:
        self._make_backend = make_backend
        self._log = log
        self._closing = closing
        self.traits = traits

    def start(
        self, *, step_ticks: int = 2, copy_ticks: int = 1, faults: FaultConfig | None = None
    ) -> Witness:
        """Make a backend; return it with a witness before it."""
        spec = self.traits.spec(step_ticks=step_ticks, copy_ticks=copy_ticks, faults=faults)
        witness = Witness(self._make_backend(spec), spec, self._log)
        self._closing.callback(witness.close)
        return witness


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """What came of a check that did not fail.

    `reason` is empty if the sentence was kept; else it says why the check was not applicable.
    """

    name: str
    sentence: str
    reason: str = ""

    @property
    def is_applicable(self) -> bool:
        """Whether the check was made."""
        return not self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCheck:
    """A check, to be called with a function that makes the backend.

    Parameters
    ----------
    name
        For test ids.
    sentence
        Of the contract: what it is about. What it finds broken may be another.
    play
        The scenario.
    needs
        Traits without which it is not applicable.
    """

    name: str
    sentence: Sentence
    play: Callable[[Stage], None] = field(repr=False)
    needs: tuple[str, ...] = ()

    def __call__(
        self,
        make_backend: Callable[[BackendSpec], Backend],
        traits: BackendTraits = _DEFAULT_TRAITS,
    ) -> CheckResult:
        """Hold the backends that `make_backend` makes to the contract.

        In a thread of its own, so that one that blocks for ever is found and not waited for. All
        calls to a backend come from that thread.

        Raises
        ------
        BackendContractError
            If a sentence is broken; it names the sentence and what was seen.
        """
        lacking = [name for name in self.needs if not getattr(traits, name)]
        if lacking:
            reason = f"needs a backend with {' and '.join(lacking)}"
            return CheckResult(name=self.name, sentence=self.sentence.value, reason=reason)
        log = CallLog()
        errors: list[BaseException] = []

        def play() -> None:
            try:
                with ExitStack() as closing:
                    self._play(Stage(make_backend, traits, log, closing), log)
            except BaseException as error:  # raised again, in the caller's thread
                errors.append(error)

        thread = Thread(target=play, name=f"check {self.name}", daemon=True)
        thread.start()
        thread.join(traits.patience_s)
        if errors:
            raise errors[0]
        if thread.is_alive():
            broken(log.sentence, f"{log.call} has not returned after {traits.patience_s:g} s")
        return CheckResult(name=self.name, sentence=self.sentence.value)

    def _play(self, stage: Stage, log: CallLog) -> None:
        try:
            self.play(stage)
        except BackendContractError:
            raise
        except BaseException as error:  # one of the backend's own
            error.add_note(f'In {self.name}, {log.call}. The contract: "{log.sentence}"')
            raise


def check(play: Callable[[Stage], None], sentence: Sentence, *needs: str) -> BackendCheck:
    """Return the check of a scenario, under its name."""
    return BackendCheck(name=play.__name__, sentence=sentence, play=play, needs=needs)

"""The conformance suite of backends: all checks, and a run of them all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.testing.backends import answers, cancels, clock, lifecycle, order
from kvsim.testing.backends.spec import BackendTraits

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.ports import Backend
    from kvsim.testing.backends.check import BackendCheck, CheckResult
    from kvsim.testing.backends.spec import BackendSpec

BACKEND_CHECKS: Final[tuple[BackendCheck, ...]] = (
    *clock.CHECKS,
    *answers.CHECKS,
    *cancels.CHECKS,
    *order.CHECKS,
    *lifecycle.CHECKS,
)
"""Every check, the most basic first: what a later one shows is clear if the earlier ones pass."""

_DEFAULT_TRAITS: Final = BackendTraits()


@dataclass(frozen=True, slots=True)
class BackendReport:
    """What came of all checks of a backend that keeps its contract."""

    results: tuple[CheckResult, ...]

    @property
    def num_kept(self) -> int:
        """Checks that were made."""
        return sum(result.is_applicable for result in self.results)

    def __str__(self) -> str:
        """Return a line for each check, and the sum."""
        lines = [f"{result.reason or 'kept':<40}  {result.name}" for result in self.results]
        return "\n".join([*lines, f"{self.num_kept} of {len(self.results)} checks made, all kept"])


def check_backend(
    make_backend: Callable[[BackendSpec], Backend], traits: BackendTraits = _DEFAULT_TRAITS
) -> BackendReport:
    """Hold a backend to its contract: make all checks, and say which were not applicable.

    Parameters
    ----------
    make_backend
        Makes a backend as the spec wants it; called once or more for each check.
    traits
        What the backend can do.

    Raises
    ------
    BackendContractError
        At the first sentence of `kvsim.core.ports.Backend` that is broken.
    """
    return BackendReport(tuple(check(make_backend, traits) for check in BACKEND_CHECKS))

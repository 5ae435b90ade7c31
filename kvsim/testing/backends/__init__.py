"""Holds a backend to its contract, `kvsim.core.ports.Backend`."""

from kvsim.testing.backends.check import BackendCheck, CheckResult
from kvsim.testing.backends.scenario import Scenario
from kvsim.testing.backends.spec import BackendSpec, BackendTraits
from kvsim.testing.backends.suite import BACKEND_CHECKS, BackendReport, check_backend
from kvsim.testing.backends.witness import Witness

__all__ = [
    "BACKEND_CHECKS",
    "BackendCheck",
    "BackendReport",
    "BackendSpec",
    "BackendTraits",
    "CheckResult",
    "Scenario",
    "Witness",
    "check_backend",
]

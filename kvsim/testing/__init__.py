"""What tests of kvsim, and of what is plugged into it, are made of.

`check_policy` holds a policy of yours to its contract, `check_backend` a backend. Beside them:
strategies for hypothesis (these need the `testing` extra), the wrappers that do the checking, a
writer of ops, a mirror of the event stream, and a digest of any state.
"""

from kvsim.testing.backends import (
    BACKEND_CHECKS,
    BackendCheck,
    BackendReport,
    BackendSpec,
    BackendTraits,
    CheckResult,
    Scenario,
    check_backend,
)
from kvsim.testing.checked import CheckedBlockPolicy, CheckedPolicy
from kvsim.testing.conformance import PolicyReport, check_policy
from kvsim.testing.findings import ConformanceError, Finding
from kvsim.testing.per_block import PerBlockLRU
from kvsim.testing.requests import Prompt, cache_configs, make_request, prompts
from kvsim.testing.state import EventMirror, digest

__all__ = [
    "BACKEND_CHECKS",
    "BackendCheck",
    "BackendReport",
    "BackendSpec",
    "BackendTraits",
    "CheckResult",
    "CheckedBlockPolicy",
    "CheckedPolicy",
    "ConformanceError",
    "EventMirror",
    "Finding",
    "PerBlockLRU",
    "PolicyReport",
    "Prompt",
    "Scenario",
    "cache_configs",
    "check_backend",
    "check_policy",
    "digest",
    "make_request",
    "prompts",
]

"""What tests of kvsim, and of what is plugged into it, are made of.

`check_policy` holds a policy of yours to its contract. Beside it: strategies for hypothesis (these
need the `testing` extra), the wrappers that do the checking, a mirror of the event stream, and a
digest of any state.
"""

from kvsim.testing.checked import CheckedBlockPolicy, CheckedPolicy
from kvsim.testing.conformance import PolicyReport, check_policy
from kvsim.testing.findings import ConformanceError, Finding
from kvsim.testing.per_block import PerBlockLRU
from kvsim.testing.requests import Prompt, cache_configs, make_request, prompts
from kvsim.testing.state import EventMirror, digest

__all__ = [
    "CheckedBlockPolicy",
    "CheckedPolicy",
    "ConformanceError",
    "EventMirror",
    "Finding",
    "PerBlockLRU",
    "PolicyReport",
    "Prompt",
    "cache_configs",
    "check_policy",
    "digest",
    "make_request",
    "prompts",
]

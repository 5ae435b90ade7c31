"""What tests of kvsim, and of what is plugged into it, are made of. Needs the `testing` extra.

`check_policy` holds a policy of yours to its contract. Beside it: strategies for hypothesis, the
wrapper that does the checking, a mirror of the event stream, and a digest of any state.
"""

from kvsim.testing.policies import CheckedPolicy, PerBlockLRU, check_policy
from kvsim.testing.requests import Prompt, cache_configs, make_request, prompts
from kvsim.testing.state import EventMirror, digest

__all__ = [
    "CheckedPolicy",
    "EventMirror",
    "PerBlockLRU",
    "Prompt",
    "cache_configs",
    "check_policy",
    "digest",
    "make_request",
    "prompts",
]

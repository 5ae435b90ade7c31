"""The ops of the suite make sense on real tensors: nothing is read that was not written."""

from __future__ import annotations

import pytest

from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits
from tests.conformance.contents import ContentBackend

TRAITS = [
    BackendTraits(tick_ns=1, can_fail=True, block_size=1, seed=5),
    BackendTraits(tick_ns=10, can_fail=True, num_instances=2, block_size=3, seed=6),
]


@pytest.mark.parametrize("traits", TRAITS, ids=["one instance", "two instances"])
@pytest.mark.parametrize("check", BACKEND_CHECKS, ids=lambda check: check.name)
def test_what_the_suite_reads_was_written(check: BackendCheck, traits: BackendTraits) -> None:
    check(ContentBackend, traits)

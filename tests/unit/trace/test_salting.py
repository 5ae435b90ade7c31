"""Tenants, or sessions, that share no block although their prompts are equal (A2)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.errors import UserError
from kvsim.trace.salting import SaltBy, salt_keys
from tests.unit.stories import trace_of

if TYPE_CHECKING:
    from kvsim.trace import Trace


def told(*names: tuple[str | None, str | None]) -> Trace:
    """Return a trace of equal prompts of two blocks, of these tenants and sessions."""
    trace = trace_of(*[("ab", 9)] * len(names), block_size=5)
    requests = tuple(
        replace(request, tenant=tenant, session_id=session)
        for request, (tenant, session) in zip(trace.requests, names, strict=True)
    )
    return replace(trace, requests=requests)


def hits(trace: Trace, salt_by: str | None) -> list[int]:
    """Return the blocks that each request hits, with room for all."""
    result = kvsim.replay(trace, gpu_blocks=100, salt_by=salt_by)
    return [each.num_gpu_hit_blocks for each in result.records]


def test_equal_prompts_of_two_tenants_share_nothing() -> None:
    """A2: A, then Q with another salt, then Q3 with the salt of Q: hits 0, 0, all."""
    trace = told(("a", None), ("x", None), ("x", None), ("a", None))
    assert hits(trace, None) == [0, 2, 2, 2]
    assert hits(trace, "tenant") == [0, 0, 2, 2]


def test_who_names_nobody_shares_with_the_same_and_with_nobody_else() -> None:
    trace = told((None, "x"), ("x", "x"), (None, "y"), ("None", "y"))
    assert hits(trace, "tenant") == [0, 0, 2, 0]
    assert hits(trace, "session") == [0, 2, 0, 2]


def test_the_salt_reaches_every_block() -> None:
    """Keys are numbered by first use; no number is in two tenants' prompts."""
    salted = salt_keys(told(("a", None), ("x", None)), SaltBy.TENANT)
    assert [each.block_keys for each in salted.requests] == [(0, 1), (2, 3)]


def test_a_trace_without_tenants_has_no_salt() -> None:
    with pytest.raises(UserError, match="trace story has no tenants"):
        salt_keys(told((None, "s")), SaltBy.TENANT)

"""Salt for traces without token ids: tenants, or sessions, that share no block."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from typing import TYPE_CHECKING

from kvsim.errors import UserError

if TYPE_CHECKING:
    from kvsim.trace.base import Trace
    from kvsim.types import BlockKey


class SaltBy(StrEnum):
    """Whose blocks are kept apart."""

    TENANT = "tenant"
    SESSION = "session"


def salt_keys(trace: Trace, by: SaltBy) -> Trace:
    """Return `trace` with keys that no two tenants, or sessions, have in common.

    Keys become whole numbers, from 0, in the order of their first use. Requests that name no
    tenant share with each other, and with nobody who names one.

    Raises
    ------
    UserError
        If no request of the trace names one: the salt would change nothing.

    Source: `cache_salt` of vLLM, which enters the hash of the first block; here the pair of salt
    and chained key does the same for every block.
    """
    names = [each.tenant if by is SaltBy.TENANT else each.session_id for each in trace.requests]
    if not any(name is not None for name in names):
        raise UserError(f"trace {trace.name} has no {by}s: there is nothing to salt its blocks by")
    numbers: dict[tuple[str | None, BlockKey], int] = {}
    return replace(
        trace,
        requests=tuple(
            replace(
                request,
                block_keys=tuple(
                    numbers.setdefault((name, key), len(numbers)) for key in request.block_keys
                ),
            )
            for request, name in zip(trace.requests, names, strict=True)
        ),
    )

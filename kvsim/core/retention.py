"""What a policy is told of an access: by whom, and how long its blocks are worth keeping."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.core.ports import AccessInfo, BlockRetention
from kvsim.types import DEFAULT_PRIORITY, NEVER, RetentionRange

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kvsim.core.attempt import Attempt
    from kvsim.types import Request

_NOTHING_SAID = RetentionRange()


def access_info(attempt: Attempt, now: int) -> AccessInfo:
    """Return what policies are told of the attempt that is admitted now."""
    request = attempt.request
    retention = None
    if request.retention or request.output_retention is not None:
        retention = block_retention(request, attempt.layout.block_size, now)
    return AccessInfo(
        now,
        request.request_id,
        request.session_id,
        request.num_input_tokens + attempt.num_made,
        request.priority,
        request.next_use_at,
        retention,
    )


def block_retention(request: Request, block_size: int, now: int) -> BlockRetention:
    """Return priority and end of each block of a request that says something about it.

    A block has the highest priority of its tokens, and of ranges with that priority the longest
    duration. Tokens in no range have the default, for good.
    """
    num_blocks = len(request.block_keys)
    found: list[tuple[int, int] | None] = [None] * num_blocks
    num_covered = [0] * num_blocks
    num_tokens = request.num_input_tokens
    reach = 0  # tokens before it are counted
    for each in sorted(request.retention, key=lambda each: each.first_token):
        end_token = num_tokens if each.end_token is None else min(each.end_token, num_tokens)
        if end_token <= each.first_token:
            continue
        worth = (each.priority, _over_at(each, now))
        last = min((end_token - 1) // block_size, num_blocks - 1)
        for block in range(each.first_token // block_size, last + 1):
            first = max(block * block_size, each.first_token, reach)
            num_covered[block] += max(0, min((block + 1) * block_size, end_token) - first)
            found[block] = max(found[block] or worth, worth)
        reach = max(reach, end_token)
    default = (DEFAULT_PRIORITY, NEVER)
    for block, worth_found in enumerate(found):
        size = min(block_size, num_tokens - block * block_size)
        if worth_found is None or num_covered[block] < size:
            found[block] = max(worth_found or default, default)
    output = request.output_retention or _NOTHING_SAID
    prompt = tuple(each or default for each in found)
    return BlockRetention(prompt, (output.priority, _over_at(output, now)))


def check_ranges(ranges: Iterable[RetentionRange]) -> str | None:
    """Return what is wrong with the ranges of one prompt: they overlap; None if nothing is."""
    end: int | None = 0
    for each in sorted(ranges, key=lambda each: each.first_token):
        if end is None or each.first_token < end:
            return f"retention ranges overlap at token {each.first_token}"
        end = each.end_token
    return None


def _over_at(each: RetentionRange, now: int) -> int:
    return NEVER if each.duration_ns is None else now + each.duration_ns

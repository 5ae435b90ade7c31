"""Whether ids may be keys as they are: the usual case, found in a few passes over all of them."""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.trace.base import Row
    from kvsim.types import BlockKey

_MAX_DENSE: Final = 1 << 22
"""Ids up to here, or up to 8 times their number, are checked in a table instead of a dict."""


def has_plain_ids(
    paths: Sequence[Sequence[object]], num_tokens: Sequence[int], block_size: int
) -> bool:
    """Return whether there surely is nothing to renumber and nothing to tell about these ids.

    That is: each id has one parent wherever it occurs, and one fill, the tokens of its prompt
    that are in it. Parents and fills are written into tables, later ones over earlier; where all
    read back what they wrote, there was one. False also means that somebody has to look closer.
    """
    import numpy as np  # slow to import

    flat = list(chain.from_iterable(paths))
    if not flat or type(flat[0]) is not int:
        return False
    try:
        ids = np.array(flat)
    except (OverflowError, ValueError):
        return False
    if ids.dtype != np.int64:  # there is something among them that is no small whole number
        return False
    if ids.min() < 0 or ids.max() > max(_MAX_DENSE, 8 * len(ids)):
        return False
    lengths = np.fromiter(map(len, paths), dtype=np.int64, count=len(paths))
    ends = np.cumsum(lengths)
    parents = np.empty_like(ids)
    parents[1:] = ids[:-1]
    parents[(ends - lengths)[lengths > 0]] = -1
    table = np.empty(ids.max() + 1, dtype=np.int64)
    table[ids] = parents
    if not (table[ids] == parents).all():
        return False
    fills = np.full_like(ids, block_size)
    rest = np.array(num_tokens, dtype=np.int64) - (lengths - 1) * block_size
    fills[(ends - 1)[lengths > 0]] = np.minimum(rest, block_size)[lengths > 0]
    table[ids] = fills
    return bool((table[ids] == fills).all())


def unequal_fills(
    rows: Sequence[Row], keys: Sequence[Sequence[BlockKey]], block_size: int
) -> list[str]:
    """Notice blocks that one row fills in part and another with more or fewer tokens.

    They are one block all the same: under `PartialRule.COUNT` a last block is treated as full.
    """
    fills: dict[BlockKey, int] = {}
    odd: dict[BlockKey, int] = {}
    for row, path in zip(rows, keys, strict=True):
        fill = row.num_input_tokens % block_size
        if fill and fills.setdefault(path[-1], fill) != fill:
            odd.setdefault(path[-1], row.line)
    for row, path in zip(rows, keys, strict=True):
        whole = path[: row.num_input_tokens // block_size]
        if not fills.keys().isdisjoint(whole):
            odd.update({key: row.line for key in whole if key in fills and key not in odd})
    if not odd:
        return []
    return [
        f"{times(len(odd), 'block')} filled in part by one row and otherwise by another, taken as"
        f" full in both, first at line {min(odd.values())}"
    ]


def times(number: int, noun: str) -> str:
    """Return `number` and `noun` as a sentence has them."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"

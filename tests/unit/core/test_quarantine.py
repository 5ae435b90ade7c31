"""Blocks that a timed-out op may still touch are nobody's, so nobody can give them back."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kvsim.core.tier import BlockPool
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("give", [BlockPool.give, BlockPool.give_dropped])
def test_quarantined_blocks_do_not_count_as_held(
    give: Callable[[BlockPool, list[int]], None],
) -> None:
    pool = BlockPool(4)
    first, second, third = pool.take(3)
    pool.quarantine(7, [first, second])
    with pytest.raises(MisuseError, match="2 blocks come back, 1 of 4 are held"):
        give(pool, [second, third])
    give(pool, [third])
    assert len(pool.free) == 2
    assert pool.unquarantine(7) == [first, second]
    assert sorted(pool.free) == [0, 1, 2, 3]

from __future__ import annotations

import pytest

from kvsim.analysis.occupancy import USES, BlockUse, Occupancy
from kvsim.errors import InvariantError
from kvsim.events import (
    AttemptEnded,
    BlocksFreed,
    BlocksKept,
    BlocksQuarantined,
    BlocksRemoved,
    BlocksStored,
    EndReason,
    FillIssued,
    RemoveCause,
    RequestAdmitted,
    RequestGrown,
    TransferIssued,
)


def admitted(*block_ids: int) -> Occupancy:
    """Return four GPU and two CPU blocks, some of them of request 0."""
    occupancy = Occupancy([4, 2])
    occupancy.emit(RequestAdmitted(0, 0, 0, ((), ()), block_ids, ()))
    return occupancy


def uses(occupancy: Occupancy, tier: int = 0) -> dict[str, int]:
    return {str(use): n for use, n in occupancy.tiers[tier].counts.items() if n}


def test_private_blocks_become_incoming_and_then_ready() -> None:
    occupancy = admitted(3, 2)
    assert uses(occupancy) == {"free": 2, "private": 2}
    occupancy.emit(FillIssued(1, 0, 0, ("a",), (3,)))
    assert uses(occupancy) == {"free": 2, "incoming": 1, "private": 1}
    occupancy.emit(BlocksStored(0, ("a",), (3,)))
    assert uses(occupancy) == {"free": 2, "ready": 1, "private": 1}
    occupancy.emit(RequestGrown(0, 0, (1,)))
    occupancy.emit(AttemptEnded(9, 0, 0, EndReason.FINISHED))
    # What it had for itself is free; what it filled stays.
    assert uses(occupancy) == {"free": 3, "ready": 1}
    assert occupancy.tiers[0].block_of == {"a": 3}


def test_a_write_back_takes_a_block_below_before_it_gives_one_above() -> None:
    occupancy = admitted(3)
    occupancy.emit(BlocksStored(0, ("a",), (3,)))
    occupancy.emit(TransferIssued(1, 0, 1, ("a",), (3,), (0,), releases_source=True))
    assert (uses(occupancy), uses(occupancy, 1)) == (
        {"free": 3, "leaving": 1},
        {"free": 1, "incoming": 1},
    )
    assert occupancy.tiers[0].block_of == {"a": 3}  # it can still be read
    occupancy.emit(BlocksKept(0, ("a",)))  # hit on its way out
    assert uses(occupancy) == {"free": 3, "ready": 1}
    occupancy.emit(BlocksFreed(1, (0,)))
    assert uses(occupancy, 1) == {"free": 2}


def test_a_copy_that_stays_above_is_in_both_tiers() -> None:
    # As in inclusive modes: the write does not release its source.
    occupancy = admitted(3)
    occupancy.emit(BlocksStored(0, ("a",), (3,)))
    occupancy.emit(TransferIssued(1, 0, 1, ("a",), (3,), (0,), releases_source=False))
    occupancy.emit(BlocksStored(1, ("a",), (0,)))
    assert (uses(occupancy), uses(occupancy, 1)) == (
        {"free": 3, "ready": 1},
        {"free": 1, "ready": 1},
    )
    occupancy.emit(BlocksRemoved(0, ("a",), RemoveCause.EVICTED))
    assert (uses(occupancy), uses(occupancy, 1)) == ({"free": 4}, {"free": 1, "ready": 1})


def test_what_a_timed_out_op_may_touch_is_in_quarantine_until_it_is_free() -> None:
    occupancy = admitted(3)
    occupancy.emit(BlocksQuarantined(1, 0, (3,)))
    # The end of its attempt does not free it.
    occupancy.emit(AttemptEnded(9, 0, 0, EndReason.RESTARTED))
    assert uses(occupancy) == {"free": 3, "quarantined": 1}
    occupancy.emit(BlocksFreed(0, (3,)))
    assert uses(occupancy) == {"free": 4}


def test_a_detached_copy_holds_its_block_until_nothing_uses_it() -> None:
    occupancy = admitted(3)
    occupancy.emit(BlocksStored(0, ("a",), (3,)))
    occupancy.emit(BlocksRemoved(0, ("a",), RemoveCause.DETACHED))
    assert uses(occupancy) == {"free": 3, "detached": 1}
    occupancy.emit(BlocksFreed(0, (3,)))
    assert uses(occupancy) == {"free": 4}


def test_a_block_of_one_is_not_given_to_another() -> None:
    occupancy = admitted(3)
    with pytest.raises(InvariantError, match="block 3 is private, not free, and is said to be"):
        occupancy.emit(RequestGrown(1, 0, (3,)))


def test_the_uses_add_up_and_are_all_named() -> None:
    occupancy = admitted(3, 2)
    assert list(occupancy.tiers[0].counts) == list(USES) == list(BlockUse)
    assert sum(occupancy.tiers[0].num_in) == 4

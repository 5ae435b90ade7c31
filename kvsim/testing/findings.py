"""What can be wrong with a policy, and the sentence of the contract that it breaks."""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from kvsim.errors import PolicyError


class Finding(StrEnum):
    """A way to break the contract of `kvsim.core.ports`."""

    METHODS = "methods"
    """A method is missing, or cannot be called with what the contract hands to it."""
    RAISES = "raises"
    """A method raised an exception."""
    PINNED_VICTIM = "pinned-victim"
    """It took a block that is in use."""
    ORPHAN = "orphan"
    """It took a block that has children in the tier, which would be left without their parent."""
    REMOVED_VICTIM = "removed-victim"
    """It took a block that has left the tier: it has forgotten to forget it."""
    NO_VICTIM = "no-victim"
    """It returned none, or too few, although blocks were evictable."""
    UNPEELED = "unpeeled"
    """It returned other victims than it took with `peel`."""
    NON_DETERMINISTIC = "non-deterministic"
    """Two runs with the same calls and the same seed took different victims."""
    IGNORES_HITS = "ignores-hits"
    """Its victims are the same whether blocks are hit or not. Right for FIFO, so it can be waived:
    by `ignores_hits = True` in the class, or by the caller."""
    COST = "cost"
    """A call costs more the more blocks there are. Can be waived by the caller."""


WAIVABLE: Final = frozenset({Finding.IGNORES_HITS, Finding.COST})

CONTRACT: Final = {
    Finding.METHODS: "a policy has all methods of BlockPolicy or of EvictionPolicy",
    Finding.RAISES: "calls that keep to the protocol are answered, not refused",
    Finding.PINNED_VICTIM: ("on_pinned: the block may not be chosen until the next on_evictable"),
    Finding.ORPHAN: "a victim is evictable when its turn comes: it has no reference and is bare",
    Finding.REMOVED_VICTIM: "on_remove: the block left the tier, chosen or not",
    Finding.NO_VICTIM: "none, or fewer than asked for, only if no more are evictable",
    Finding.UNPEELED: "every victim is taken with peel",
    Finding.NON_DETERMINISTIC: "the same calls give the same victims; draws come from context.rng",
    Finding.IGNORES_HITS: "on_hit: a request matched the block",
    Finding.COST: "O(1) or O(log n) a block",
}


class ConformanceError(PolicyError):
    """A policy broke its contract.

    Attributes
    ----------
    finding
        What it did.
    problem, contract
        The two halves of the message: what was done, and the sentence that it breaks.
    """

    def __init__(self, finding: Finding, problem: str) -> None:
        contract = CONTRACT[finding]
        # One line, whatever an exception of the policy's says.
        problem = " ".join(problem.split())
        super().__init__(f"{problem} [{finding}; the contract: {contract}]")
        self.finding, self.problem, self.contract = finding, problem, contract

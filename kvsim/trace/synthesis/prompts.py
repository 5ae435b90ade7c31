"""Prompts as sequences of texts, of which only lengths and who shares them are known."""

from __future__ import annotations

from bisect import bisect
from itertools import accumulate
from math import log
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Hashable

    from kvsim.types import Rng


class Prompt:
    """The beginning of prompts: its tokens, and the keys of its full blocks."""

    __slots__ = ("branches", "keys", "num_tokens")

    def __init__(self, keys: list[int], num_tokens: int) -> None:
        self.keys, self.num_tokens = keys, num_tokens
        self.branches: dict[Hashable, Prompt] = {}


class Writer:
    """Writes prompts of one trace; block keys are dense, in the order of their first use.

    Two prompts share the blocks that lie within the texts that both begin with. A block that
    reaches into the first text that is different is another in each.

    Parameters
    ----------
    block_size
        Tokens a block.
    """

    __slots__ = ("_block_size", "_num_keys", "empty")

    def __init__(self, block_size: int) -> None:
        self._block_size, self._num_keys = block_size, 0
        self.empty = Prompt([], 0)

    def add_own(self, prompt: Prompt, num_tokens: int) -> Prompt:
        """Return `prompt` and a text after it that no other prompt has."""
        total = prompt.num_tokens + num_tokens
        num_new = total // self._block_size - len(prompt.keys)
        keys = [*prompt.keys, *range(self._num_keys, self._num_keys + num_new)]
        self._num_keys += num_new
        return Prompt(keys, total)

    def add_shared(self, prompt: Prompt, name: Hashable, num_tokens: int) -> Prompt:
        """Return `prompt` and the text `name` after it: the same whenever it is asked for."""
        found = prompt.branches.get(name)
        if found is None:
            found = prompt.branches[name] = self.add_own(prompt, num_tokens)
        return found


class Popularity:
    """Draws a number from 0: the k-th most popular, from 1, in proportion to k ** -exponent.

    Source: G. K. Zipf's law.
    """

    __slots__ = ("_limits", "_rng")

    def __init__(self, num: int, exponent: float, rng: Rng) -> None:
        self._limits = list(accumulate(rank**-exponent for rank in range(1, num + 1)))
        self._rng = rng

    def draw(self) -> int:
        """Return the next number."""
        limits = self._limits
        return min(bisect(limits, self._rng.random() * limits[-1]), len(limits) - 1)


def length(rng: Rng, mean_tokens: float) -> int:
    """Draw a length of at least 1: half the sum of two exponentials, so few are very short."""
    return max(1, (exponential(rng, mean_tokens) + exponential(rng, mean_tokens)) // 2)


def exponential(rng: Rng, mean: float) -> int:
    """Draw a whole number from an exponential distribution."""
    return round(-mean * log(1 - rng.random()))


def happens(rng: Rng, percent: float) -> bool:
    """Draw whether something that so many of 100 do happens."""
    return rng.random() * 100 < percent

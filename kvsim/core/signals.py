"""What the compute of a rank says about its layers, each signal in one word of 64 bits.

A word is read as a whole or not at all, so a layer can never be taken for that of another step.
Both kinds count up, and each implies all before it: who misses one learns as much from the next.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from kvsim.errors import MisuseError

STEP_MODULUS: Final = 100_003
"""Steps are counted modulo this. Source: FastDeploy's splitwise step counter."""
GENERATION_MODULUS: Final = 1 << 16

_LAYER_BITS: Final = 12
_SLOT_BITS: Final = 12
_TOKEN_BITS: Final = 24
_GENERATION_BITS: Final = 16


class StepSignal(NamedTuple):
    """Layer `layer` of step `step` (modulo `STEP_MODULUS`) is computed; -1: it has begun."""

    step: int
    layer: int

    def to_word(self) -> int:
        """Return the signal as one word."""
        _require("step", self.step, 0, STEP_MODULUS - 1)
        _require("layer", self.layer, -1, (1 << _LAYER_BITS) - 2)
        return self.step << _LAYER_BITS | self.layer + 1

    @classmethod
    def from_word(cls, word: int) -> StepSignal:
        """Return the signal of a word."""
        return cls(word >> _LAYER_BITS, (word & (1 << _LAYER_BITS) - 1) - 1)


class ChunkSignal(NamedTuple):
    """Layer `layer` of a chunk is computed, for the request that has a batch slot.

    Slots are used again: `generation` (modulo `GENERATION_MODULUS`) counts the uses of a slot, so
    that what comes late for one request is never taken for the next. The chunk is `num_tokens`
    tokens from `first_token` on; with it the layer is there up to its end.
    """

    slot: int
    generation: int
    first_token: int
    num_tokens: int
    layer: int

    @property
    def end_token(self) -> int:
        """Tokens of the prompt that have this layer now."""
        return self.first_token + self.num_tokens

    def to_word(self) -> int:
        """Return the signal as one word. It keeps the end of the chunk, not its beginning."""
        _require("slot", self.slot, 0, (1 << _SLOT_BITS) - 1)
        _require("generation", self.generation, 0, GENERATION_MODULUS - 1)
        _require("end_token", self.end_token, 0, (1 << _TOKEN_BITS) - 1)
        _require("layer", self.layer, 0, (1 << _LAYER_BITS) - 1)
        word = self.generation << _SLOT_BITS | self.slot
        return (word << _TOKEN_BITS | self.end_token) << _LAYER_BITS | self.layer

    @classmethod
    def from_word(cls, word: int) -> ChunkSignal:
        """Return the signal of a word, as of a chunk from the first token on."""
        layer = word & (1 << _LAYER_BITS) - 1
        word >>= _LAYER_BITS
        end_token = word & (1 << _TOKEN_BITS) - 1
        word >>= _TOKEN_BITS
        slot = word & (1 << _SLOT_BITS) - 1
        generation = word >> _SLOT_BITS & (1 << _GENERATION_BITS) - 1
        return cls(slot, generation, 0, end_token, layer)


def serial_distance(number: int, other: int, modulus: int) -> int:
    """Return how far `number` is ahead of `other` (negative: behind) on a circle of numbers.

    They must be less than half the circle apart.

    Source: RFC 1982 (serial number arithmetic), section 3.2.
    """
    ahead = (number - other) % modulus
    return ahead - modulus if ahead > modulus // 2 else ahead


def _require(name: str, value: int, least: int, most: int) -> None:
    if not least <= value <= most:
        raise MisuseError(f"{name} must be {least} to {most}, not {value}")

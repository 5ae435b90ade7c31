"""Signals are one word each, and count on across the wrap."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.signals import (
    GENERATION_MODULUS,
    STEP_MODULUS,
    ChunkSignal,
    StepSignal,
    serial_distance,
)
from kvsim.errors import MisuseError

STEPS = st.integers(0, STEP_MODULUS - 1)


@given(step=STEPS, layer=st.integers(-1, 4094))
def test_a_step_and_its_layer_are_one_word(step: int, layer: int) -> None:
    signal = StepSignal(step, layer)
    assert 0 <= signal.to_word() < 1 << 63
    assert StepSignal.from_word(signal.to_word()) == signal


@given(
    slot=st.integers(0, 4095),
    generation=st.integers(0, GENERATION_MODULUS - 1),
    first=st.integers(0, 1 << 22),
    count=st.integers(1, 1 << 22),
    layer=st.integers(0, 4095),
)
def test_a_chunk_and_its_layer_are_one_word(
    slot: int, generation: int, first: int, count: int, layer: int
) -> None:
    signal = ChunkSignal(slot, generation, first, count, layer)
    word = signal.to_word()
    assert 0 <= word < 1 << 64
    seen = ChunkSignal.from_word(word)
    assert seen.end_token == first + count
    assert (seen.slot, seen.generation, seen.layer) == (slot, generation, layer)


@given(step=STEPS, ahead=st.integers(-STEP_MODULUS // 2 + 1, STEP_MODULUS // 2))
def test_a_distance_does_not_notice_the_wrap(step: int, ahead: int) -> None:
    assert serial_distance((step + ahead) % STEP_MODULUS, step, STEP_MODULUS) == ahead


@pytest.mark.parametrize(
    ("signal", "problem"),
    [
        (StepSignal(STEP_MODULUS, 0), "step must be 0 to 100002, not 100003"),
        (StepSignal(0, -2), "layer must be -1 to 4094, not -2"),
        (ChunkSignal(4096, 0, 0, 1, 0), "slot must be 0 to 4095, not 4096"),
        (ChunkSignal(0, 1 << 16, 0, 1, 0), "generation must be 0 to 65535, not 65536"),
        (ChunkSignal(0, 0, 1 << 24, 1, 0), "end_token must be 0 to 16777215, not 16777217"),
        (ChunkSignal(0, 0, 0, 1, -1), "layer must be 0 to 4095, not -1"),
    ],
)
def test_what_does_not_fit_a_word_is_refused(
    signal: StepSignal | ChunkSignal, problem: str
) -> None:
    with pytest.raises(MisuseError, match=problem):
        signal.to_word()

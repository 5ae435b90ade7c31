"""Answers of `kvsim.size`, against a search of all capacities and the plane of the lab."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvsim
from kvsim.analysis.metrics import DEFINITIONS
from kvsim.capacity import KNEE_PERCENTS
from kvsim.hitrate import lru_curve, tier_plane
from tests.property.lab import traces

if TYPE_CHECKING:
    from kvsim.trace import Trace

FAR = 130  # more blocks than any of these traces has


@settings(max_examples=200)
@given(
    trace=traces(),
    target=st.floats(0, 1),
    definition=st.sampled_from([*DEFINITIONS]),
    gpu_blocks=st.integers(1, 20),
    warmup=st.sampled_from([0.0, 0.5]),
)
def test_the_answer_is_the_least_size_that_a_search_finds(
    trace: Trace, target: float, definition: str, gpu_blocks: int, warmup: float
) -> None:
    found = kvsim.size(
        trace, target_hit=target, definition=definition, gpu_blocks=gpu_blocks, warmup=warmup
    )
    curve = lru_curve(trace, warmup=warmup)
    rates = [0.0] + [curve.at(c)[definition]["rate"] for c in range(1, FAR)]
    least = next((c for c, rate in enumerate(rates) if rate >= target), None)
    alone, both = found.point("GPU alone"), found.point("GPU + CPU")
    if least is None:
        assert alone is both is None
        assert found.infinite["rate"] < target
        return
    assert alone is not None
    assert both is not None
    assert (alone.gpu_blocks, alone.cpu_blocks) == (least, 0)
    assert (both.gpu_blocks, both.cpu_blocks) == (gpu_blocks, max(0, least - gpu_blocks))


@settings(max_examples=200)
@given(
    trace=traces(),
    definition=st.sampled_from([*DEFINITIONS]),
    sizes=st.tuples(st.integers(1, 12), st.integers(0, 12)),
    extra=st.integers(1, 6),
)
def test_what_more_room_is_worth_is_what_the_plane_says(
    trace: Trace, definition: str, sizes: tuple[int, int], extra: int
) -> None:
    gpu, cpu = sizes
    found = kvsim.size(trace, definition=definition, gpu_blocks=gpu)
    worth = found.worth(gpu, cpu, extra)
    plane = tier_plane(trace, gpu=[gpu], cpu=[cpu])

    def hits(gpu: int, cpu: int, tier: str) -> int:
        return plane.at(gpu, cpu)[tier][definition]["hits"]

    assert worth.new_hits == hits(gpu, cpu + extra, "all") - hits(gpu, cpu, "all")
    assert worth.new_hits == hits(gpu + extra, cpu, "all") - hits(gpu, cpu, "all")
    # Up to the GPU comes what the CPU had; what is new comes in at the far end of both.
    on_gpu = hits(gpu + extra, cpu, "gpu") - hits(gpu, cpu, "gpu")
    assert worth.moved_hits == on_gpu - max(0, hits(gpu + extra, 0, "gpu") - hits(gpu, cpu, "all"))


@settings(max_examples=200)
@given(trace=traces(), definition=st.sampled_from([*DEFINITIONS]))
def test_the_knees_are_those_that_a_search_finds(trace: Trace, definition: str) -> None:
    found = kvsim.size(trace, definition=definition, gpu_blocks=1)
    curve = lru_curve(trace)
    hits = [0] + [curve.at(c)[definition]["hits"] for c in range(1, FAR)]
    if not hits[-1]:
        assert found.knees == ()
        return
    for percent, knee in zip(KNEE_PERCENTS, found.knees, strict=False):
        assert knee.gpu_blocks == next(
            c for c, each in enumerate(hits) if 100 * each >= percent * hits[-1]
        )
    depth = hits.index(hits[-1])
    above = [hits[c] / hits[-1] - c / depth for c in range(depth + 1)]
    assert above[found.knees[-1].gpu_blocks] == pytest.approx(max(above))

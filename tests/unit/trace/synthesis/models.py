"""Small models, and a strategy for all that are possible."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from kvsim.trace.synthesis import FitReport, RequestClass, SessionModel, SharedPrefix
from kvsim.types import PartialRule


def small_model(**changes: object) -> SessionModel:
    """Sessions of a shared block and two of their own; each goes on once, after 2 requests."""
    once = RequestClass(
        up_to_blocks=9,
        continuations=1.0,
        delay_requests=(2.0, 2.0),
        dropped_blocks=(1.0,),
        new_blocks=(2.0,),
    )
    model = SessionModel(
        num_requests=8,
        block_size=16,
        partial=PartialRule.COUNT,
        longest_blocks=9,
        first_blocks=(2.0,),
        output_tokens=(5.0,),
        gap_ms=(10.0,),
        first=(once,),
        continued=(RequestClass(up_to_blocks=9, continuations=0),),
        prefixes=(SharedPrefix(num_blocks=1, share=1.0),),
    )
    return replace(model, **changes)  # type: ignore[arg-type]


REPORT = FitReport(
    seeds=(1, 2),
    capacities=(10, 100),
    source_rates=(0.1, 0.5),
    model_rates=(0.2, 0.4),
    curve_error=0.1,
    worst_curve_error=0.12,
    largest_error=0.15,
    source_infinite=0.6,
    model_infinite=0.55,
    reuse_distance=0.07,
    references=1.01,
)

_BLOCKS = st.integers(0, 12)
_LISTS = st.lists(st.floats(0, 12), min_size=1, max_size=4).map(tuple)
_DELAYS = st.lists(st.floats(0, 50), min_size=2, max_size=4).map(lambda each: tuple(sorted(each)))


@st.composite
def _classes(draw: st.DrawFn, longest: int) -> tuple[RequestClass, ...]:
    edges = sorted(draw(st.lists(st.integers(0, longest), max_size=2)))
    return tuple(
        RequestClass(
            up_to_blocks=edge,
            continuations=draw(st.floats(0, 3)),
            delay_requests=draw(_DELAYS),
            dropped_blocks=draw(_LISTS),
            new_blocks=draw(_LISTS),
        )
        for edge in [*edges, longest]
    )


@st.composite
def _prefixes(draw: st.DrawFn) -> tuple[SharedPrefix, ...]:
    num = draw(st.integers(0, 3))
    return tuple(
        SharedPrefix(
            num_blocks=draw(st.integers(1, 6)),
            share=draw(st.floats(0, 1 / num)),
            extends=draw(st.none() | st.integers(0, index - 1)) if index else None,
        )
        for index in range(num)
    )


@st.composite
def models(draw: st.DrawFn) -> SessionModel:
    """Any model that can be right, with or without a report."""
    longest = draw(st.integers(1, 12))
    return SessionModel(
        num_requests=draw(st.integers(1, 40)),
        block_size=draw(st.sampled_from([1, 16])),
        partial=draw(st.sampled_from(list(PartialRule))),
        longest_blocks=longest,
        first_blocks=draw(_LISTS),
        output_tokens=draw(_LISTS),
        gap_ms=draw(_LISTS),
        first=draw(_classes(longest)),
        continued=draw(_classes(longest)),
        prefixes=draw(_prefixes()),
        report=draw(st.sampled_from([None, REPORT])),
    )

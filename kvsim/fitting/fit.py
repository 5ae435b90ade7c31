"""Fit a `SessionModel` to a trace: counts first, then two scales so that the LRU curve is right.

A request continues the one that had the last block of what both share most recently, if that block
is beyond the prefix that many sessions share; else it begins a session. What is counted of the
continuations is in `RequestClass`. Two scales, of all continuations and of all delays, are then
moved until draws have the infinite hit rate and the mean LRU hit rate of the trace.

Source: none; ours. How well it does is measured on other seeds and stands in the model.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from statistics import fmean
from typing import TYPE_CHECKING, Final

from kvsim.collector import paused_collector
from kvsim.errors import UserError
from kvsim.fitting.comparison import Source
from kvsim.fitting.counting import Detail, Step, bin_means, classes_of
from kvsim.fitting.prefixes import find_prefixes
from kvsim.hitrate.paths import find_pieces
from kvsim.trace.specs import check_number
from kvsim.trace.synthesis.session_model import MOST_BLOCKS, SessionModel, SharedPrefix

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.fitting.counting import Member
    from kvsim.fitting.prefixes import Prefixes
    from kvsim.trace import Trace
    from kvsim.trace.synthesis.session_model import RequestClass

MOST_NUMBERS: Final = 199
"""A model has fewer than 200 numbers, so it can hold little of any single request."""

CALIBRATION_SEEDS: Final = (1_000_001, 1_000_002, 1_000_003, 1_000_004)
TEST_SEEDS: Final = (1, 2, 3, 4, 5, 6, 7, 8)
_ROUNDS: Final = 8
_LARGEST_SCALE: Final = 4.0
_MOST_SCALED: Final = 1.98  # below two continuations each, so that no class explodes by scaling
_MS_NS: Final = 10**6
# The finest that leaves the model within MOST_NUMBERS is taken; shared prefixes need room too.
_DETAILS: Final = (
    Detail(delays=11, dropped=6, new=8, first=20),
    Detail(delays=11, dropped=6, new=8, first=16),
    Detail(delays=9, dropped=6, new=8, first=16),
    Detail(delays=9, dropped=6, new=7, first=14),
)
_NUM_LOAD_BINS: Final = 5


@paused_collector()
def fit(
    trace: Trace,
    *,
    capacities: Sequence[int] | None = None,
    rounds: int = _ROUNDS,
    test_seeds: Sequence[int] = TEST_SEEDS,
    progress: Callable[[int, int], None] | None = None,
) -> SessionModel:
    """Return a model of the trace's workload with its error as `report`; changes nothing.

    For LRU, the optimum, the sizes of tiers and load tests; never to rank eviction policies.

    Parameters
    ----------
    trace
        What to imitate. Some hundred requests at least, or the counts mean little.
    capacities
        In blocks: where the LRU curve is to be right; None: 20 of `default_capacities`.
    rounds
        How often the scales are moved; 0: the counts alone.
    test_seeds
        For the report. They may not be among `CALIBRATION_SEEDS`.
    progress
        Called with the draws done and the draws in all.

    Raises
    ------
    UserError
        If the trace has lengths only or nothing to hit, or an argument is impossible.
    """
    if not trace.has_prefixes:
        raise UserError(
            f"trace {trace.name} has lengths only: there is no sharing to fit; load it with a"
            " sharing model, or use a workload of kvsim's own"
        )
    check_number("rounds", rounds, most=1_000, whole=True)
    for seed in test_seeds:
        if seed in CALIBRATION_SEEDS:
            raise UserError(f"seed {seed} is used in the fit; test on others")
    source = Source(trace, capacities)
    num_draws = rounds * len(CALIBRATION_SEEDS) + len(test_seeds)
    tell = progress or (lambda _done, _of: None)
    model = calibrate(count(trace), source, rounds, lambda done: tell(done, num_draws))
    report = source.report(model, test_seeds)
    tell(num_draws, num_draws)
    return replace(model, report=report)


def count(trace: Trace) -> SessionModel:
    """Return the model as it is counted, not calibrated, of fewer than 200 numbers."""
    pieces = find_pieces(trace)
    lengths = pieces.lengths
    longest = max(lengths)
    if longest > MOST_BLOCKS:
        raise UserError(f"trace {trace.name} has a prompt of more than {MOST_BLOCKS} blocks")
    prefixes = find_prefixes(trace, pieces)
    members: list[Member] = [(length, []) for length in lengths]
    begun: list[Member] = []
    continued: list[Member] = []
    own_blocks: list[int] = []
    sessions: Counter[int | None] = Counter()
    num = trace.num_requests
    for index, (found, length) in enumerate(zip(pieces.previous, lengths, strict=True)):
        match, source = found[-1] if found else (0, 0)
        prefix, depth = prefixes.longest_of(trace.requests[index].block_keys)
        if match <= depth:
            begun.append(members[index])
            sessions[prefix] += 1
            own_blocks.append(length - depth)
            continue
        continued.append(members[index])
        delay = index - source
        # So long a delay fits only into a share of the trace: those that did stand for the rest.
        weight = num / (num - delay)
        members[source][1].append(Step(delay, lengths[source] - match, length - match, weight))
    for detail in _DETAILS:
        model = _assembled(trace, detail, longest, (begun, continued), own_blocks)
        model = replace(model, prefixes=_with_shares(prefixes, sessions, len(begun)))
        if model.num_numbers <= MOST_NUMBERS:
            break
    return model


def _assembled(
    trace: Trace,
    detail: Detail,
    longest: int,
    groups: tuple[list[Member], list[Member]],
    own_blocks: list[int],
) -> SessionModel:
    requests = trace.requests
    arrivals = [each.arrived_at / _MS_NS for each in requests]
    gaps = [after - before for before, after in pairwise(arrivals)]
    first, continued = (classes_of(members, detail, longest) for members in groups)
    return SessionModel(
        num_requests=len(requests),
        block_size=trace.block_size,
        partial=trace.partial,
        longest_blocks=longest,
        first_blocks=bin_means(own_blocks, detail.first),
        output_tokens=bin_means([each.num_output_tokens for each in requests], _NUM_LOAD_BINS),
        gap_ms=bin_means(gaps or [0], _NUM_LOAD_BINS),
        first=first,
        continued=continued,
    )


def _with_shares(
    prefixes: Prefixes, sessions: Counter[int | None], num_sessions: int
) -> tuple[SharedPrefix, ...]:
    return tuple(
        SharedPrefix(
            num_blocks=num_blocks,
            share=sessions[index] * 10_000 // num_sessions / 10_000,  # down: the sum stays below 1
            extends=extends,
        )
        for index, (num_blocks, extends) in enumerate(prefixes.found)
    )


def calibrate(
    model: SessionModel, source: Source, rounds: int, tell: Callable[[int], None]
) -> SessionModel:
    """Return `model` with its two scales moved: the best of all rounds by the curve's error."""
    continuations = delays = 1.0
    best, least = model, float("inf")
    for number in range(rounds):
        tried = _scaled(model, continuations, delays)
        found = []
        for seed in CALIBRATION_SEEDS:
            found.append(source.compare(tried, seed))
            tell(number * len(CALIBRATION_SEEDS) + len(found))
        error = fmean(each.curve_error for each in found)
        if error < least:
            best, least = tried, error
        infinite = fmean(each.infinite for each in found)
        mean = fmean(fmean(each.curve) for each in found)
        continuations = _within(continuations * (1 - infinite))
        # What is wrong at infinity is wrong, about half, at the capacities below it too.
        delays = _within(delays * (1 + 2 * (mean - infinite / 2)))
    return best


def _within(scale: float) -> float:
    return min(_LARGEST_SCALE, max(1 / _LARGEST_SCALE, scale))


def _scaled(model: SessionModel, continuations: float, delays: float) -> SessionModel:
    def change(kind: RequestClass) -> RequestClass:
        mean = kind.continuations
        if mean < 1:  # the others are hubs, not sessions
            mean = round(min(_MOST_SCALED, mean * continuations), 4)
        return replace(
            kind,
            continuations=mean,
            delay_requests=tuple(round(each * delays, 2) for each in kind.delay_requests),
        )

    return replace(
        model,
        first=tuple(map(change, model.first)),
        continued=tuple(map(change, model.continued)),
    )

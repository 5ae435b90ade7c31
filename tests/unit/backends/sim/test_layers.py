"""The closed forms about layers, against a loop over layers."""

from __future__ import annotations

from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.sim.layers import LayerCurve, gated_layer_times, straight


@st.composite
def curves(draw: st.DrawFn) -> LayerCurve:
    """Return a curve of up to eight straight pieces."""
    steps = draw(st.lists(st.tuples(st.integers(1, 50), st.integers(0, 40)), max_size=8))
    times, amounts = [draw(st.integers(0, 100))], [0]
    for span, width in [*steps, (draw(st.integers(1, 50)), draw(st.integers(1, 40)))]:
        times.append(times[-1] + span)
        amounts.append(amounts[-1] + width)
    curve = LayerCurve(times, amounts, amounts[-1])
    curve.shift_ns = draw(st.integers(0, 10))
    return curve


def test_a_straight_curve_finishes_its_layers_evenly() -> None:
    assert straight(100, 200).layer_times(4) == (125, 150, 175, 200)
    assert straight(100, 110).layer_times(4) == (103, 105, 108, 110)  # 102.5, 105, 107.5, 110


def test_a_curve_of_nothing_finishes_all_layers_at_its_end() -> None:
    curve = LayerCurve([5], [0], 0)
    assert curve.layer_times(3) == (5, 5, 5)
    assert curve.gated_end_at(3, 30) == 35


def test_a_curve_that_pauses_finishes_no_layer_meanwhile() -> None:
    curve = LayerCurve([0, 10, 60, 70], [0, 10, 10, 20], 20)
    assert curve.layer_times(4) == (5, 10, 65, 70)


@given(curves(), st.integers(1, 12), st.integers(0, 200))
def test_the_end_of_a_gated_step_equals_a_loop_over_its_layers(
    curve: LayerCurve, num_layers: int, busy_ns: int
) -> None:
    ends = [
        curve.exactly_finished_at(layer, num_layers)
        + Fraction((num_layers - layer) * busy_ns, num_layers)
        for layer in range(num_layers)
    ]
    assert curve.gated_end_at(num_layers, busy_ns) == ceil(max(ends))


@given(st.lists(curves(), min_size=1, max_size=3), st.integers(1, 12), st.integers(0, 200))
def test_the_layers_of_a_gated_step_end_with_its_end(
    given_curves: list[LayerCurve], num_layers: int, busy_ns: int
) -> None:
    times = gated_layer_times(given_curves, 50, num_layers, busy_ns)
    ends = [curve.gated_end_at(num_layers, busy_ns) for curve in given_curves]
    assert times[-1] == max(50 + busy_ns, *ends)
    assert list(times) == sorted(times)

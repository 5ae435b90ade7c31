"""When the layers of an op finish, and what that means for a Forward that waits for them.

Work is spread evenly over the layers: of an op with L layers, layer l is finished when
(l + 1) / L of its amount is done.
"""

from __future__ import annotations

from fractions import Fraction
from math import ceil
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class LayerCurve:
    """How much of an op was done at which time: straight lines between points, from 0 to `total`.

    Parameters
    ----------
    times
        Nanoseconds, rising. All of them are later by `shift_ns` in the end.
    amounts
        What was done at these times, in any unit, never falling; from 0 to at least `total`.
    """

    __slots__ = ("_amounts", "_times", "_total", "shift_ns")

    def __init__(self, times: Sequence[int], amounts: Sequence[int], total: int) -> None:
        self._times = times
        self._amounts = amounts
        self._total = total
        self.shift_ns = 0

    def gated_end_at(self, num_layers: int, busy_ns: int) -> int:
        """Return the earliest end of a step that computes each layer after this op's, rounded up.

        The step takes `busy_ns` in `num_layers` equal parts; part l begins when part l - 1 and
        layer l of this op are finished. So it ends at the latest of
        `finished_at(l) + (num_layers - l) / num_layers * busy_ns`, and on a straight piece of the
        curve that is largest at the first or the last layer of the piece: no loop over layers.
        """
        times, amounts, total = self._times, self._amounts, self._total
        if not total:
            return times[-1] + busy_ns + self.shift_ns
        end_at = 0
        for index in range(1, len(times)):
            start, stop = amounts[index - 1], amounts[index]
            width = stop - start
            if not width:
                continue
            first = start * num_layers // total
            last = min(stop * num_layers // total, num_layers) - 1
            if last < first:
                continue
            span_ns = times[index] - times[index - 1]
            per_layer = total * span_ns - busy_ns * width
            layer = last if per_layer > 0 else first
            done = ((layer + 1) * total - start * num_layers) * span_ns
            wait = done + (num_layers - layer) * busy_ns * width
            end_at = max(end_at, times[index - 1] - -wait // (num_layers * width))
        return end_at + self.shift_ns

    def finished_at(self, layer: int, num_layers: int) -> int:
        """Return when `layer` of `num_layers` is finished, in whole nanoseconds, rounded up."""
        numerator, denominator = self._ratio(layer, num_layers)
        return -(-numerator // denominator)

    def exactly_finished_at(self, layer: int, num_layers: int) -> Fraction:
        """Return when `layer` of `num_layers` is finished, unrounded."""
        return Fraction(*self._ratio(layer, num_layers))

    def layer_times(self, num_layers: int) -> tuple[int, ...]:
        """Return `finished_at` of each layer."""
        return tuple(self.finished_at(layer, num_layers) for layer in range(num_layers))

    def _ratio(self, layer: int, num_layers: int) -> tuple[int, int]:
        """Return when `layer` is finished, as numerator and denominator."""
        times, amounts = self._times, self._amounts
        target = (layer + 1) * self._total
        if self._total:
            for index in range(1, len(times)):
                if amounts[index] * num_layers >= target:
                    start_at, start = times[index - 1], amounts[index - 1]
                    width = (amounts[index] - start) * num_layers
                    done = (target - start * num_layers) * (times[index] - start_at)
                    return done + (start_at + self.shift_ns) * width, width
        return times[-1] + self.shift_ns, 1  # of nothing, all layers end at the end


def straight(start_at: int, end_at: int) -> LayerCurve:
    """Return the curve of an op that works evenly from `start_at` to `end_at`."""
    return LayerCurve((start_at, end_at), (0, 1), 1)


def gated_layer_times(
    curves: Sequence[LayerCurve], start_at: int, num_layers: int, busy_ns: int
) -> tuple[int, ...]:
    """Return when each layer of a step is finished whose layers wait for those of `curves`.

    The rule of `LayerCurve.gated_end_at`, layer by layer, from `start_at` on.
    """
    part_ns = Fraction(busy_ns, num_layers)
    at = Fraction(start_at)
    ends = []
    for layer in range(num_layers):
        at = max(at, *(curve.exactly_finished_at(layer, num_layers) for curve in curves)) + part_ns
        ends.append(ceil(at))
    return tuple(ends)

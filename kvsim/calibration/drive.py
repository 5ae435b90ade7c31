"""Copies one way, the other way and both ways at once, with nothing else on the ranks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.calibration.probe import GPU, HOST
from kvsim.core.ops import Completion, Outcome, Transfer
from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from random import Random

    from kvsim.backends.setup import OpenBackend

REPEATS: Final = 15

_FIRST_OP_ID: Final = 1 << 49
"""Neither a run nor its probes have such ids."""


class Bare(NamedTuple):
    """What a round of copies took (ns), from the first start to the last end on the ranks."""

    has_in: bool
    has_out: bool
    took_ns: int


def drive(opened: OpenBackend, *, num_blocks: int, rng: Random) -> list[Bare]:
    """Copy `num_blocks` blocks up, down, and both ways at once, in a mixed order.

    Mixed, so that a machine that gets slower meanwhile does not make one of them look dear. Each
    tier has at least twice as many blocks.

    Raises
    ------
    UserError
        If a copy fails.
    """
    plan = [(True, False), (False, True), (True, True)] * REPEATS
    rng.shuffle(plan)
    plan = [(True, True), *plan]  # the first copies find everything cold
    found = [_round(opened, at, way, num_blocks, rng) for at, way in enumerate(plan)]
    return found[1:]


def _round(
    opened: OpenBackend, number: int, way: tuple[bool, bool], num_blocks: int, rng: Random
) -> Bare:
    lower, upper = range(num_blocks), range(num_blocks, 2 * num_blocks)
    op_id = _FIRST_OP_ID + 2 * number
    transfers = []
    if way[0]:
        ids = tuple(rng.sample(lower, num_blocks))
        transfers.append(Transfer(op_id, HOST, GPU, ids, tuple(lower)))
    if way[1]:
        ids = tuple(rng.sample(upper, num_blocks))
        transfers.append(Transfer(op_id + 1, GPU, HOST, ids, tuple(upper)))
    for transfer in transfers:
        opened.backend.submit(transfer)
    ended: list[Completion] = []
    while len(ended) < len(transfers):
        ended += [x for x in opened.backend.wait(None) if isinstance(x, Completion)]
    for answer in ended:
        if answer.outcome is not Outcome.DONE:
            raise UserError(f"calibration: a copy ended {answer.outcome}: {answer.reason}")
    return Bare(*way, _span(ended))


def _span(ended: Sequence[Completion]) -> int:
    return max(a.finished_at for a in ended) - min(a.started_at for a in ended)

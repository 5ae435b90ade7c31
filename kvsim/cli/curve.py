"""`kvsim curve`: hit rate against capacity, with no requests in flight."""

from __future__ import annotations

import json
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace

    from kvsim.hitrate import HitCurve
    from kvsim.trace import Trace

HELP: Final = "hit rate against capacity, exact, with no requests in flight"

_NUM_DEFAULT: Final = 12
_RESIDENCIES: Final[dict[str, Literal["resident", "bypass"]]] = {
    "opt": "resident",
    "opt-bypass": "bypass",
}


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command."""
    from kvsim.cli.engine import add_engine_argument
    from kvsim.cli.lab import add_trace_arguments

    add_trace_arguments(parser)
    add_engine_argument(parser)
    parser.add_argument(
        "--policy", default="lru", metavar="NAME",
        help="lru (all capacities at once), opt, opt-bypass, or any policy; default: lru",
    )  # fmt: skip
    parser.add_argument(
        "--capacities", metavar="N,N,...",
        help="in blocks; default: 12 from 1 to where the LRU curve ends",
    )  # fmt: skip
    parser.add_argument(
        "--flat", action="store_true",
        help="a plain cache: no prefix tree, every block stands alone, as policies are published",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="for policies that draw")


def run(arguments: Namespace) -> None:
    """Compute the curve, draw, print."""
    from kvsim.analysis.metrics import DEFINITIONS
    from kvsim.cli.engine import take_engine
    from kvsim.cli.lab import check_picture, load_trace, save_picture, show_table

    check_picture(arguments.plot)
    engine = take_engine(arguments)
    trace = load_trace(arguments)
    curve = _curve(arguments, trace)
    if arguments.plot is not None:
        bound = [] if curve.policy in _RESIDENCIES else [_optimum(trace, curve)]
        save_picture(partial(curve.plot, others=bound), arguments.plot)
    if arguments.json:
        print(json.dumps(curve.points(), sort_keys=True, allow_nan=False))
        return
    notes = [curve.basis.caption, *(() if engine is None else engine.unset())]
    show_table(curve.title, ("blocks", *DEFINITIONS), curve.table_rows(), notes)


def _curve(arguments: Namespace, trace: Trace) -> HitCurve:
    from kvsim.cli.lab import block_counts
    from kvsim.cli.terminal import progress_bar
    from kvsim.errors import ConfigError, UnknownNameError
    from kvsim.hitrate import flat_curve, lru_curve, opt_curve, replay_curve
    from kvsim.hitrate.curves import log_spaced
    from kvsim.policies import policy_names

    name, warmup = arguments.policy, arguments.warmup
    known = {*policy_names(), *_RESIDENCIES}
    if name not in known:
        raise UnknownNameError("policy", name, known)
    if arguments.capacities is not None:
        chosen = block_counts("--capacities", arguments.capacities)
    else:
        chosen = log_spaced(max(lru_curve(trace).capacities), _NUM_DEFAULT)
    if arguments.flat:
        if name in _RESIDENCIES:
            raise ConfigError(f"--flat is for policies, not {name!r}; the clairvoyant is 'belady'")
        with progress_bar("curve") as progress:
            return flat_curve(
                trace, name, chosen, warmup=warmup, seed=arguments.seed, progress=progress
            )
    if name == "lru":
        return lru_curve(trace, chosen, warmup=warmup)
    if name in _RESIDENCIES:
        return opt_curve(trace, chosen, _RESIDENCIES[name], warmup=warmup)
    with progress_bar("curve") as progress:
        return replay_curve(
            trace, name, chosen, warmup=warmup, seed=arguments.seed, progress=progress
        )


def _optimum(trace: Trace, curve: HitCurve) -> HitCurve:
    from kvsim.hitrate import opt_curve

    return opt_curve(trace, curve.capacities, warmup=curve.basis.warmup)

"""How far `sampled_replay` is from `replay_curve`: the figures of `KNOWN_ERRORS` and of the docs.

Takes half an hour. Run as `python -m tests.bench.sampling_error` from the root of the checkout;
reads the folder named by KVSIM_TRACES.
"""

from __future__ import annotations

import os
from pathlib import Path
from statistics import mean

from kvsim.hitrate import replay_curve, sampled_replay
from kvsim.policies import policy_names
from kvsim.trace import load

CAPACITIES = [1_000, 3_000, 10_000, 30_000]
RATES = [0.2, 0.1, 0.05]
SEEDS = range(4)


def main() -> int:
    """Print the mean absolute error, and the mean error at each capacity, in points."""
    folder = os.environ.get("KVSIM_TRACES")
    if not folder:
        print("sampling_error: set KVSIM_TRACES to the folder that holds the folder mooncake")
        return 2
    for name in ("conversation", "synthetic"):
        trace = load(Path(folder) / "mooncake" / f"{name}_trace.jsonl")
        for policy in policy_names():
            exact = replay_curve(trace, policy, CAPACITIES).rates("block")
            for rate in RATES:
                errors = [
                    [
                        100 * (estimate["block"] - true)
                        for estimate, true in zip(
                            sampled_replay(trace, policy, CAPACITIES, rate, seed=seed).rates,
                            exact,
                            strict=True,
                        )
                    ]
                    for seed in SEEDS
                ]
                absolute = mean(abs(each) for row in errors for each in row)
                by_capacity = "  ".join(
                    f"{mean(column):+.2f}" for column in zip(*errors, strict=True)
                )
                print(f"{name:13} {policy:15} {rate:5} {absolute:5.2f}   {by_capacity}", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

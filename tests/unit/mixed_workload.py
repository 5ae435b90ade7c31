"""Prints the events of a run with evictions, copies both ways, preemptions and faults.

Run as a module, so that one test can run it under several hash seeds.
"""

from __future__ import annotations

import sys
from random import Random

from kvsim.config import CacheConfig, FaultConfig, SchedulerConfig
from kvsim.types import Request
from tests.unit.core.stage import Engine


def text_requests(rng: Random, num_requests: int) -> list[Request]:
    """Return requests whose keys are texts, the hashes of which differ from process to process."""
    requests = []
    at = 0
    for request_id in range(num_requests):
        at += rng.randrange(40)
        text = "".join(rng.choice("ab") for _ in range(rng.randint(1, 5)))
        requests.append(
            Request(
                request_id=request_id,
                arrived_at=at,
                block_keys=[text[: end + 1] for end in range(len(text))],
                num_input_tokens=4 * len(text) + rng.randrange(4),
                num_output_tokens=rng.choice([1, 3, 9, 20]),
                cancelled_at=at + 90 if not rng.randrange(9) else None,
            )
        )
    return requests


def main() -> None:
    """Print one event a line."""
    cache = CacheConfig(
        block_size=4, tier_blocks=(12, 12), swap_batch_blocks=2, low_watermark_blocks=2
    )
    scheduler = SchedulerConfig(
        token_budget=16,
        max_running=5,
        decode_reserve_blocks=0,
        transfer_timeout_ns=200,
        forward_timeout_ns=500,
    )
    faults = FaultConfig(fail_rate=0.03, delay_rate=0.03, hang_rate=0.03)
    stage = Engine(text_requests(Random(3), 120), cache, scheduler).play(faults=faults, seed=1)
    for event in stage.events:
        sys.stdout.write(f"{event!r}\n")
    for record in stage.records.values():
        times = (record.admitted_at, record.first_token_at, record.ended_at)
        sys.stdout.write(f"{record.request.request_id} {record.status} {times}\n")


if __name__ == "__main__":
    main()

"""The time scale of a run on the wall clock, by hand."""

from __future__ import annotations

import pytest

from kvsim.config import LinkConfig
from kvsim.cost import Hardware
from kvsim.execution import Job, with_time_scale
from kvsim.policies import policy_factory
from kvsim.replay_config import ReplayConfig
from kvsim.trace import Trace
from kvsim.types import PartialRule, Request

SECOND = 10**9

# So fast that a step takes its 4 seconds of overhead, and some nanoseconds.
HARDWARE = Hardware(
    name="steps of 4 s",
    num_gpus=1,
    flops_per_second=10**22,
    memory_bytes_per_second=10**20,
    memory_bytes=10**12,
    host_link=LinkConfig(bytes_per_second=10**12, latency_ns=0, overhead_ns=0),
    step_overhead_ns=4 * SECOND,
)


def scaled(
    *arrivals_s: float,
    num_output_tokens: int = 1,
    time_scale: float | str | None = None,
    forward: str | None = None,
) -> Job:
    """Return the job of requests of one token each, with its time scale found."""
    requests = tuple(
        Request(
            request_id=i,
            arrived_at=round(at * SECOND),
            block_keys=[i],
            num_input_tokens=1,
            num_output_tokens=num_output_tokens,
            cancelled_at=round((at + 3) * SECOND) if i else None,
        )
        for i, at in enumerate(arrivals_s)
    )
    return with_time_scale(
        Job(
            config=ReplayConfig(
                backend="paddle",
                gpu_blocks=10,
                hardware=HARDWARE,
                time_scale=time_scale,
                forward=forward,
            ),
            trace=Trace(
                requests=requests,
                block_size=1,
                partial=PartialRule.COUNT,
                name="by hand",
                format="test",
            ),
            new_policy=policy_factory("lru")[1],
        )
    )


def test_arrivals_that_take_longer_than_the_steps_decide() -> None:
    # The last of two requests comes after 41 s; each takes one step of 4 s. 41 / 5 is below 10.
    job = scaled(0, 41)
    assert job.config.time_scale == 5
    assert [each.arrived_at for each in job.trace.requests] == [0, 41 * SECOND // 5]
    assert job.trace.requests[1].cancelled_at == 44 * SECOND // 5


def test_exactly_ten_seconds_need_no_larger_scale() -> None:
    assert scaled(0, 10).config.time_scale == 1
    assert scaled(0, 10.000000001).config.time_scale == 2


def test_steps_that_take_longer_than_the_arrivals_decide() -> None:
    # A prompt and 8 steps more, of 4 s each: 36 s, and the last arrival is at 0.
    job = scaled(0, num_output_tokens=9)
    assert job.config.time_scale == 4
    assert scaled(0, 0.5, num_output_tokens=1, time_scale="auto").config.time_scale == 1


def test_without_time_for_the_steps_the_arrivals_alone_decide() -> None:
    assert scaled(0, num_output_tokens=9, forward="none").config.time_scale == 1
    assert scaled(0, 21, num_output_tokens=9, forward="none").config.time_scale == 3


@pytest.mark.parametrize(("scale", "arrived_at"), [(2.5, 16.4), (1, 41), (0.5, 82)])
def test_a_scale_that_is_given_is_taken(scale: float, arrived_at: float) -> None:
    job = scaled(0, 41, time_scale=scale)
    assert job.config.time_scale == scale
    assert job.trace.requests[1].arrived_at == round(arrived_at * SECOND)
    assert job.setup((10,)).time_scale == scale

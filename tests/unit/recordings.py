"""Recordings for tests: of a small story, of a run in which much goes wrong, and changed ones."""

from __future__ import annotations

from io import BytesIO
from random import Random
from typing import TYPE_CHECKING

from kvsim.api import resolve
from kvsim.backends.sim import SimBackend
from kvsim.backends.turns import TurnReader, TurnWriter
from kvsim.building import build_core
from kvsim.core.engine import run
from kvsim.policies import policy_factory
from kvsim.recording import open_recording, recorder
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import cost_model
from kvsim.trace import Trace, annotate_next_use
from kvsim.types import PartialRule, Request
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from kvsim.backends.turn_codec import End, Header, Turn
    from kvsim.core.ops import Answer, Command
    from kvsim.core.ports import Backend, BlockPolicy, EventSink, EvictionPolicy
    from kvsim.policies.registry import PolicyMaker

MS_NS = 10**6

STORY = ReplayConfig(gpu_blocks=3, cpu_blocks=6, swap_batch_blocks=1, low_watermark_blocks=0)

BUSY = ReplayConfig(
    gpu_blocks=14,
    cpu_blocks=12,
    swap_batch_blocks=2,
    low_watermark_blocks=2,
    token_budget=16,
    max_running=5,
    decode_reserve_blocks=0,
    transfer_timeout_ns=2 * MS_NS,
    forward_timeout_ns=40 * MS_NS,
    fail_rate=0.004,
    delay_rate=0.004,
    hang_rate=0.004,
    seed=1,
    interventions=("50ms weights", "60ms evict request=0"),
)


def busy_trace(num_requests: int = 120) -> Trace:
    """Return requests that share prefixes and want more blocks than there are; some give up.

    Request 7 can never fit into 14 blocks.

    Keys are texts, the hashes of which differ from process to process.
    """
    rng = Random(3)
    requests = []
    at = 0
    for request_id in range(num_requests):
        length = 20 if request_id == 7 else rng.randint(1, 5)
        text = "".join(rng.choice("ab") for _ in range(length))
        requests.append(
            Request(
                request_id=request_id,
                arrived_at=at,
                block_keys=[text[: end + 1] for end in range(len(text))],
                num_input_tokens=4 * len(text) + rng.randrange(4),
                num_output_tokens=rng.choice([1, 3, 9, 20]),
                cancelled_at=at + 90 * MS_NS if not rng.randrange(9) else None,
            )
        )
        at += rng.randrange(20) * MS_NS
    return Trace(
        requests=tuple(requests),
        block_size=4,
        partial=PartialRule.NEVER,
        name="busy",
        format="story",
    )


def record(
    path: Path,
    trace: Trace,
    config: ReplayConfig,
    *,
    policy: str | PolicyMaker | EvictionPolicy | BlockPolicy | None = None,
    wrap: Callable[[Backend], Backend] | None = None,
    onward: EventSink | None = None,
) -> None:
    """Record a run on the simulator, as `kvsim.replay` makes it; `wrap` goes around its backend."""
    name, new_policy, needs_future = policy_factory(config.policy if policy is None else policy)
    config = resolve(config.with_settings({"policy": name}), trace)
    if needs_future:
        trace = annotate_next_use(trace)
    simulator: Backend = SimBackend(
        cost_model(config, trace.block_size),
        links=config.machine.host_link,
        num_ranks=config.machine.num_gpus,
        faults=config.faults,
        seed=config.seed,
    )
    with recorder(path, config, trace) as recording:
        core = build_core(config, trace, new_policy, sink=recording.sink(onward))
        backend = recording.backend(simulator if wrap is None else wrap(simulator))
        try:
            run(core.decider, backend)
        finally:
            backend.close()


def record_story(path: Path) -> Path:
    """Record three requests, the blocks of which go down and come up again; return `path`."""
    record(path, back_from_below(), STORY)
    return path


def contents(path: Path) -> tuple[Header, tuple[Request, ...], list[Turn], End]:
    """Return all that a recording has."""
    with open_recording(path) as recording:
        turns = list(recording)
        assert recording.end is not None
        return recording.header, recording.requests, turns, recording.end


def rewrite(
    path: Path,
    *,
    header: Header | None = None,
    requests: Sequence[Request] | None = None,
    turns: Sequence[Turn] | None = None,
    end: End | None = None,
) -> Path:
    """Write the recording at `path` again with other parts; the checksums are right again."""
    old_header, old_requests, old_turns, old_end = contents(path)
    told = old_requests if requests is None else requests
    with path.open("wb") as stream:
        writer = TurnWriter(stream, path, header or old_header, told)
        for turn in old_turns if turns is None else turns:
            writer.turn(*turn)
        writer.end((end or old_end).failure)
    return path


def read(data: bytes, path: Path) -> list[Turn]:
    """Return the turns of a recording given as bytes."""
    return list(TurnReader(BytesIO(data), path))


class Around:
    """A backend that passes everything on, and does something when a call has come so often."""

    def __init__(self, inner: Backend, call: str, after: int, then: Callable[[], None]) -> None:
        self.inner = inner
        self.call = call
        self.left = after
        self.then = then

    def count(self, call: str) -> None:
        if call == self.call:
            self.left -= 1
            if self.left < 0:
                self.then()

    def now(self) -> int:
        self.count("now")
        return self.inner.now()

    def submit(self, command: Command) -> None:
        self.count("submit")
        self.inner.submit(command)

    def wait(self, until: int | None) -> Sequence[Answer]:
        self.count("wait")
        return self.inner.wait(until)

    def close(self) -> None:
        self.inner.close()
        self.count("close")


def raising(error: BaseException) -> Callable[[], None]:
    def then() -> None:
        raise error

    return then

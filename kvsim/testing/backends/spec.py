"""What a check needs of the backend it is given, and what a backend says it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError
from kvsim.types import Request

if TYPE_CHECKING:
    from kvsim.config import FaultConfig

_NUM_REQUESTS: Final = 96
_NUM_PROMPT_BLOCKS: Final = 2
_NUM_OUTPUT_TOKENS: Final = 1 << 12  # more than any scenario decodes
_NUM_BLOCKS: Final = 768  # of each tier: ops take fresh ones, and the largest check has 260 ops


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSpec:
    """The backend that a check asks for.

    Parameters
    ----------
    num_instances
        Ops name the instances from 0 to here; each has a GPU tier (0) and a CPU tier (1).
    num_ranks, num_layers, block_size
        Of each instance.
    num_gpu_blocks, num_cpu_blocks
        Of each instance: block ids in ops are below these.
    requests
        Those that ops name: `Slice.request_id` is a position in here. No two share a block, and
        prompts are whole blocks, so that token t of a request is in block `t // block_size` of
        its table, output tokens too.
    step_ns
        How long each step of a Forward shall take.
    copy_ns
        About how long a Transfer shall take; no check relies on it.
    faults, seed
        What goes wrong, on each rank; None: nothing.
    tick_ns
        The unit that the times of the check are multiples of.
    """

    num_instances: int
    num_ranks: int
    num_layers: int
    block_size: int
    num_gpu_blocks: int
    num_cpu_blocks: int
    requests: tuple[Request, ...]
    step_ns: int
    copy_ns: int
    faults: FaultConfig | None
    seed: int
    tick_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendTraits:
    """What a backend can do, and how large the one under test shall be. Declared, never probed.

    Parameters
    ----------
    tick_ns
        The unit of all durations and deadlines of the checks, in nanoseconds. The default is
        right for a backend that lives in real time, and for one in virtual time as good as any.
    steps_take_time
        Whether a step of a Forward takes `BackendSpec.step_ns` or longer.
    can_fail
        Whether it injects the faults of `BackendSpec.faults`.
    records_layers
        Whether its Completions that are DONE carry `layers_finished_at`.
    num_instances, num_ranks, num_layers, block_size
        Sizes that the checks ask for.
    seed
        Decides the random checks and faults.
    patience_s
        How long a check may take, in seconds of real time. One that takes longer is taken for a
        backend that blocks for ever; checks that pass take far less than a second each.

    Raises
    ------
    ConfigError
        If a size is not positive.
    """

    tick_ns: int = 2_000_000  # a timer of an operating system is late by a small part of it
    steps_take_time: bool = True
    can_fail: bool = False
    records_layers: bool = False
    num_instances: int = 1
    num_ranks: int = 1
    num_layers: int = 4
    block_size: int = 16
    seed: int = 0
    patience_s: float = 60.0  # more than a machine under load makes of the longest check

    def __post_init__(self) -> None:
        sizes = ("tick_ns", "num_instances", "num_ranks", "num_layers", "block_size", "patience_s")
        for name in sizes:
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be positive, not {getattr(self, name)!r}")

    def spec(
        self, *, step_ticks: int = 2, copy_ticks: int = 1, faults: FaultConfig | None = None
    ) -> BackendSpec:
        """Return the specification of a backend with these traits, for a check or your own test."""
        size = self.block_size
        return BackendSpec(
            num_instances=self.num_instances,
            num_ranks=self.num_ranks,
            num_layers=self.num_layers,
            block_size=size,
            num_gpu_blocks=_NUM_BLOCKS + -(-_NUM_OUTPUT_TOKENS // size),
            num_cpu_blocks=_NUM_BLOCKS,
            requests=tuple(_request(i, size) for i in range(_NUM_REQUESTS)),
            step_ns=step_ticks * self.tick_ns,
            copy_ns=copy_ticks * self.tick_ns,
            faults=faults,
            seed=self.seed,
            tick_ns=self.tick_ns,
        )


def _request(request_id: int, block_size: int) -> Request:
    """Return a request whose prompt is two whole blocks that no other has."""
    first = _NUM_PROMPT_BLOCKS * request_id
    return Request(
        request_id=request_id,
        arrived_at=0,
        block_keys=tuple(range(first, first + _NUM_PROMPT_BLOCKS)),
        num_input_tokens=_NUM_PROMPT_BLOCKS * block_size,
        num_output_tokens=_NUM_OUTPUT_TOKENS,
    )

"""What a check needs of the backend it is given, and what a backend says it can do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from kvsim.config import FaultConfig
    from kvsim.types import Request


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

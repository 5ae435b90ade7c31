"""Short ways to write ops, and to read answers, for the tests of the simulator."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from kvsim.backends.sim import SimBackend
from kvsim.config import FaultConfig, LinkConfig
from kvsim.core.ops import Cancel, Completion, Forward, Gate, Place, Slice, Transfer
from kvsim.cost import CostModel, LinearCost

if TYPE_CHECKING:
    from kvsim.backends.sim.transfers import Links
    from kvsim.core.ops import Answer

GPU = Place(instance=0, tier=0)
CPU = Place(instance=0, tier=1)
REMOTE_GPU = Place(instance=1, tier=0)

ONE_BYTE_A_NS = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=0)
# A token takes 1 ns and a block is 1 byte, which takes 1 ns: sizes are times. Four layers.
UNIT = LinearCost(token_ns=1, num_layers=4)

Row: TypeAlias = "tuple[int, str, int, int]"


def backend(
    cost: CostModel = UNIT,
    *,
    links: Links = ONE_BYTE_A_NS,
    num_ranks: int = 1,
    faults: FaultConfig | None = None,
    seed: int = 0,
    record_layers: bool = False,
) -> SimBackend:
    """Return a backend whose sizes are times."""
    return SimBackend(
        cost,
        links=links,
        num_ranks=num_ranks,
        faults=faults,
        seed=seed,
        record_layers=record_layers,
    )


def forward(
    op_id: int,
    num_tokens: int,
    *,
    instance: int = 0,
    num_steps: int = 1,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.LAYER,
    deadline_at: int | None = None,
) -> Forward:
    """Return a Forward of `num_steps` steps of `num_tokens` tokens each."""
    prefill: tuple[Slice, ...] = ()
    if num_steps == 1:
        prefill = (
            Slice(request_id=0, attempt=0, first_token=0, num_tokens=num_tokens, block_ids=()),
        )
    return Forward(
        op_id=op_id,
        instance=instance,
        num_steps=num_steps,
        prefill=prefill,
        joined=(),
        left=(),
        grown=(),
        num_decodes=0 if prefill else num_tokens,
        context_tokens=0,
        after=after,
        gate=gate,
        deadline_at=deadline_at,
    )


def transfer(
    op_id: int,
    num_blocks: int,
    *,
    source: Place = CPU,
    target: Place = GPU,
    after: tuple[int, ...] = (),
    gate: Gate = Gate.OP,
    deadline_at: int | None = None,
) -> Transfer:
    """Return a Transfer of `num_blocks` blocks, from the CPU to the GPU unless told otherwise."""
    return Transfer(
        op_id=op_id,
        source=source,
        target=target,
        source_ids=(0,) * num_blocks,
        target_ids=(0,) * num_blocks,
        after=after,
        gate=gate,
        deadline_at=deadline_at,
    )


def cancel(op_id: int) -> Cancel:
    """Return a Cancel."""
    return Cancel(op_id=op_id)


def drain(simulator: SimBackend) -> list[Answer]:
    """Return all answers that are left."""
    answers: list[Answer] = []
    while batch := simulator.wait(None):
        answers += batch
    return answers


def row(answer: Answer) -> Row:
    """Return an answer as (op id, outcome or "settled", start, finish)."""
    if type(answer) is Completion:
        return (answer.op_id, answer.outcome.value, answer.started_at, answer.finished_at)
    return (answer.op_id, "settled", answer.finished_at, answer.finished_at)


def rows(simulator: SimBackend) -> list[Row]:
    """Return all answers that are left, as rows."""
    return [row(answer) for answer in drain(simulator)]

"""One call that makes a trace: of a workload by name or value, or of a model in a file."""

from __future__ import annotations

from os import PathLike, fspath
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Final, TypeAlias

from kvsim.collector import paused_collector
from kvsim.errors import ConfigError
from kvsim.trace.base import DEFAULT_BLOCK_SIZE, Trace
from kvsim.trace.specs import check_number, parse_spec
from kvsim.trace.synthesis.agents import Agents
from kvsim.trace.synthesis.chat import Chat
from kvsim.trace.synthesis.model_draws import draw_from_model
from kvsim.trace.synthesis.model_file import load_model
from kvsim.trace.synthesis.prompts import Writer
from kvsim.trace.synthesis.rag import Rag
from kvsim.trace.synthesis.session_model import PURPOSE, SessionModel
from kvsim.trace.synthesis.sessions import draw_requests
from kvsim.trace.synthesis.starts import Starts, parse_starts
from kvsim.trace.synthesis.system_prompts import SystemPrompts
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from kvsim.trace.synthesis.sessions import Workload

_Known: TypeAlias = Chat | SystemPrompts | Rag | Agents

WORKLOADS: Final[dict[str, type[_Known]]] = {
    "chat": Chat,
    "system-prompts": SystemPrompts,
    "rag": Rag,
    "agents": Agents,
}
"""Name -> what sessions ask for."""

_NUM_REQUESTS: Final = 2_000
_MODEL_SUFFIX: Final = ".toml"


@paused_collector()
def synthesize(
    model: str | PathLike[str] | Workload | SessionModel,
    *,
    num_requests: int | None = None,
    seed: int = 0,
    block_size: int | None = None,
    arrivals: Starts | str | None = None,
) -> Trace:
    """Return a made-up trace; the same for the same arguments, everywhere.

    Parameters
    ----------
    model
        A workload: `"rag"`, `"rag:passages=8,exponent=1.2"` or `Rag(passages=8)`; or a model of a
        trace: `"model.toml"` or a `SessionModel`.
    num_requests
        Length of the trace; None: 2,000, or as many as the source of a model had.
    seed
        Another seed is another trace.
    block_size
        Tokens a block; None: 64, or as the model says, which cannot be changed.
    arrivals
        When sessions begin, of a model of a trace: when requests arrive; such as
        `"bursts:gap_s=2,size=8+diurnal:swing=0.5"`. None: as the workload or model says.

    Raises
    ------
    UserError
        If there is no such workload or file, or a number is impossible.
    """
    name = None
    if isinstance(model, str | PathLike):
        name = fspath(model).partition(":")[0]
        if isinstance(model, PathLike) or model.endswith(_MODEL_SUFFIX):
            name, model = Path(model).stem, load_model(model)
        else:
            model = parse_workload(model)
    if num_requests is not None:
        check_number("num_requests", num_requests, least=1, most=1e8, whole=True)
    check_number("seed", seed, whole=True)
    starts = parse_starts(arrivals) if isinstance(arrivals, str) else arrivals
    rng = Random(seed)
    if isinstance(model, SessionModel):
        if block_size not in (None, model.block_size):
            raise ConfigError(f"block_size of this model is {model.block_size}, not {block_size}")
        times = None if starts is None else starts.times_ms(rng)
        return Trace(
            requests=tuple(draw_from_model(model, num_requests or model.num_requests, rng, times)),
            block_size=model.block_size,
            partial=model.partial,
            name=f"{name or 'model'}-{seed}",
            format="synthetic",
            repairs=(f"drawn from a model of a trace. {' '.join(PURPOSE)}",),
        )
    size = DEFAULT_BLOCK_SIZE if block_size is None else block_size
    check_number("block_size", size, least=1, most=1e6, whole=True)
    requests = draw_requests(
        model,
        num_requests or _NUM_REQUESTS,
        starts=starts or model.starts,
        writer=Writer(size),
        rng=rng,
    )
    return Trace(
        requests=tuple(requests),
        block_size=size,
        partial=PartialRule.NEVER,
        name=f"{name or type(model).__name__.lower()}-{seed}",
        format="synthetic",
    )


def parse_workload(text: str) -> Workload:
    """Return the workload that a line such as `rag:passages=8,exponent=1.2` names.

    Raises
    ------
    UserError
        If the line names none, or a number is impossible.
    """
    return parse_spec(text, "workload", WORKLOADS)

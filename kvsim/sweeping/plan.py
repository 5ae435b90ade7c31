"""From a sweep's lists to its cells: traces read once, settings resolved, cells identified."""

from __future__ import annotations

from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from kvsim.custom_policy import policy_source
from kvsim.errors import UserError
from kvsim.sizing import resolve
from kvsim.sweeping.cells import Cell, TraceView, cell_digest, read_view

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.replay_config import ReplayConfig
    from kvsim.sweeping.config import SweepConfig
    from kvsim.trace import Trace


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlannedTrace:
    """What stays in memory of a trace while its cells run, and what a comparison needs.

    `num_input_tokens` has one entry a request, and so has `sessions`: requests with equal numbers
    are of one session. It is None if the trace names no session.
    """

    sha256: str | None
    num_requests: int
    block_size: int
    partial: str
    num_input_tokens: np.ndarray
    sessions: np.ndarray | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Plan:
    """The cells of a sweep in the order of its lists, and the traces they read."""

    cells: tuple[Cell, ...]
    traces: dict[TraceView, PlannedTrace]


def plan(config: SweepConfig) -> Plan:
    """Read each trace and return the cells of a sweep.

    Raises
    ------
    UserError
        If a trace cannot be read. What does not fit a trace, a cell will say when it is run.
    """
    sources = {policy: _source_sha256(policy) for policy in config.policies}
    traces: dict[TraceView, PlannedTrace] = {}
    cells: list[Cell] = []
    for name, (variant, settings) in product(config.traces, config.variants().items()):
        asked = TraceView(
            location=config.location(name),
            sha256=None,
            format=settings.format,
            partial=settings.partial,
            limit=settings.limit,
            block_size=settings.block_size,
        )
        trace = read_view(asked)
        view = asked._replace(sha256=trace.sha256)
        if view not in traces:
            traces[view] = _planned(trace)
        for each in _combinations(config, settings):
            resolved = _resolved(each, trace)
            digest = cell_digest(
                trace_sha256=trace.sha256,
                resolved=resolved,
                policy_sha256=sources[each.policy],
            )
            cell = Cell(
                digest=digest,
                trace=name,
                variant=variant,
                view=view,
                config=each,
                resolved=resolved,
            )
            cells.append(cell)
    read_view.cache_clear()  # the sweep may be long, and the workers read for themselves
    return Plan(cells=tuple(cells), traces=traces)


def _combinations(config: SweepConfig, settings: ReplayConfig) -> Iterator[ReplayConfig]:
    axes = (config.gpu_blocks or (None,), config.cpu_blocks or (None,))
    for gpu, cpu, policy, seed in product(*axes, config.policies, config.seeds):
        sized = settings.with_settings({"gpu_blocks": gpu, "cpu_blocks": cpu})
        yield replace(sized, policy=policy, seed=seed)


def _resolved(config: ReplayConfig, trace: Trace) -> ReplayConfig:
    try:
        return resolve(config, trace)
    except UserError:
        return config


def _planned(trace: Trace) -> PlannedTrace:
    names: dict[str, int] = {}
    sessions = np.empty(trace.num_requests, dtype=np.int64)
    for index, request in enumerate(trace.requests):
        # A request without a session is one of its own; no name is a number.
        name = request.session_id
        code = -1 - index if name is None else names.setdefault(name, len(names))
        sessions[index] = code
    return PlannedTrace(
        sha256=trace.sha256,
        num_requests=trace.num_requests,
        block_size=trace.block_size,
        partial=trace.partial.value,
        num_input_tokens=np.array(
            [request.num_input_tokens for request in trace.requests], dtype=np.int64
        ),
        sessions=sessions if names else None,
    )


def _source_sha256(policy: str) -> str | None:
    """Return the hash of the file that defines a policy of one's own.

    With it, a cell is run again when its policy has been edited. None for policies by their name
    in a table: those are of kvsim's version, or of an installed package.
    """
    source = policy_source(policy)
    return None if source is None else sha256(source.read_bytes()).hexdigest()

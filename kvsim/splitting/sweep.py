"""The same split again and again, with one thing changed: link speed, chunk size, layers."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

import pandas as pd

from kvsim.api import read_config, read_trace
from kvsim.errors import ConfigError, UserError
from kvsim.splitting.call import SPLIT_NAMES, split
from kvsim.splitting.settings import SplitSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from kvsim.cost import ModelShape
    from kvsim.replay_config import ReplayConfig
    from kvsim.splitting.result import SplitResult
    from kvsim.trace import Trace

OVER: Final = ("link", "token_budget", "layers")
"""What may be varied: GB/s a card, tokens a step computes at most, layers of the model."""

COLUMNS: Final = {
    "send": "string",
    "ttft_mean_ms": "float64",
    "ttft_p99_ms": "float64",
    "queue_ms": "float64",
    "compute_ms": "float64",
    "exposed_transfer_ms": "float64",
    "hidden_fraction": "float64",
    "bytes_sent": "int64",
    "max_utilisation": "float64",
    "is_network_bound": "bool",
}
"""Column of the frame, behind that of the value -> dtype."""


def split_sweep(
    trace: str | PathLike[str] | Trace,
    *,
    over: str,
    values: Sequence[float],
    sends: Sequence[str] = ("layerwise", "at_end"),
    config: ReplayConfig | str | PathLike[str] | None = None,
    progress: Callable[[int, int], None] | None = None,
    **settings: object,
) -> pd.DataFrame:
    """Run a split for each value and each way of sending; return one row a run.

    Parameters
    ----------
    trace, config, settings
        As in `kvsim.split`.
    over
        "link" (GB/s a card), "token_budget" (tokens a step computes at most: the chunk size) or
        "layers" (of a model that is otherwise the same, with its weights in proportion).
    values
        What it takes, each above 0.
    sends
        Ways of sending to compare.
    progress
        Called with (runs done, runs in all).

    Raises
    ------
    UserError
        As `kvsim.split`; or if `over` or a value is impossible.
    """
    if over not in OVER:
        raise ConfigError(f"a split can be swept over {', '.join(OVER)}, not {over!r}")
    if not values or not sends:
        raise ConfigError("a sweep needs at least one value and one way of sending")
    known = {name: value for name, value in settings.items() if value is not None}
    base = read_config(config).with_settings(
        {name: value for name, value in known.items() if name not in SPLIT_NAMES}
    )
    loaded = read_trace(trace, base)
    rows: list[dict[str, object]] = []
    for value in values:
        for send in sends:
            changed = known | {"send": send} | _changed(over, value, base, known)
            try:
                result = split(loaded, config=base, **cast("dict[str, Any]", changed))
            except UserError as error:
                raise UserError(f"{over} {value:g}: {error}") from error
            rows.append({over: value} | _row(send, result))
            if progress is not None:
                progress(len(rows), len(values) * len(sends))
    return pd.DataFrame(rows).astype(COLUMNS)


def _changed(
    over: str, value: float, base: ReplayConfig, settings: dict[str, object]
) -> dict[str, object]:
    if over == "link":
        link = SplitSettings(link=settings.get("link", "ib-400g")).network  # type: ignore[arg-type]
        speed = SplitSettings(link=value).network
        return {"link": replace(link, bytes_per_second=speed.bytes_per_second)}
    if value != int(value) or value < 1:
        raise ConfigError(f"{over} must be whole numbers of at least 1, not {value!r}")
    if over == "token_budget":
        return {"token_budget": int(value)}
    return {"model": _with_layers(base.model_shape, int(value))}


def _with_layers(model: ModelShape, num_layers: int) -> ModelShape:
    return replace(
        model,
        name=f"{model.name}, {num_layers} layers",
        num_layers=num_layers,
        num_parameters=-(-model.num_parameters * num_layers // model.num_layers),
        num_active_parameters=-(-model.num_active_parameters * num_layers // model.num_layers),
    )


def _row(send: str, result: SplitResult) -> dict[str, object]:
    parts, times, busiest = result.ttft_parts_ms, result.ttft_ms, result.busiest_link
    if parts is None or times is None:
        raise UserError("no request has a time to first token")
    return {
        "send": send,
        "ttft_mean_ms": times["mean"],
        "ttft_p99_ms": times["p99"],
        "queue_ms": parts["queue"],
        "compute_ms": parts["compute"],
        "exposed_transfer_ms": parts["exposed_transfer"],
        "hidden_fraction": result.hidden_fraction or 0.0,
        "bytes_sent": result.bytes_sent,
        "max_utilisation": 0.0 if busiest is None else busiest[1]["utilisation"],
        "is_network_bound": result.is_network_bound,
    }

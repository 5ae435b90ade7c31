"""What became of an operator's orders, as JSON values and as a line for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.core.interventions import Action

if TYPE_CHECKING:
    from kvsim.core.interventions import InterventionRecord

_NS_PER_S: Final = 10**9


def intervention_figures(record: InterventionRecord) -> dict[str, object]:
    """Return the record as JSON values. Times are nanoseconds on the clock of the run."""
    order = record.intervention
    figures: dict[str, object] = {
        "action": str(order.action),
        "at_ns": order.at,
        "taken_at_ns": record.taken_at,
        "done_at_ns": record.done_at,
        "status": str(record.status),
        "detail": record.detail,
    }
    if order.action is Action.RESIZE:
        figures |= {"tier": order.tier, "blocks": order.num_blocks}
    if order.keys:
        figures["blocks"] = len(order.keys)
    return figures


def intervention_row(record: InterventionRecord) -> tuple[str, str]:
    """Return what was ordered, and what came of it."""
    order = record.intervention
    text = f"{record.status}: {record.detail}"
    if record.done_at is not None and record.taken_at is not None:
        waited_s = (record.done_at - record.taken_at) / _NS_PER_S
        text += f" (after {waited_s:,.3f} s)" if waited_s else ""
    return f"{order.action} at {order.at / _NS_PER_S:g} s", text

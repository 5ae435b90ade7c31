"""The backend that the property tests of the scheduler run on keeps the contract it is to keep.

The scheduler has one Forward open at a time, cancels no Transfer, and never misuses its backend: so
the queue of an instance is added here, Cancels of Transfers are ignored (a backend may: they end
as they would have), and what must be refused is left out.
"""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

import pytest

from kvsim.core.ops import Cancel, Forward
from kvsim.testing import BACKEND_CHECKS, BackendCheck, BackendTraits
from tests.property.scripted import ScriptedBackend, _Op

if TYPE_CHECKING:
    from kvsim.core.ops import Command
    from kvsim.testing import BackendSpec

TRAITS = BackendTraits(tick_ns=1, steps_take_time=False)
REFUSALS = {
    "a_closed_backend_refuses_commands",
    "an_op_behind_one_never_submitted_is_refused",
}
PROMISED = [
    check
    for check in BACKEND_CHECKS
    if check.name not in REFUSALS and all(getattr(TRAITS, need) for need in check.needs)
]


class QueuedBackend(ScriptedBackend):
    """Ends the Forwards of an instance in order, and hears no Cancel of a Transfer."""

    def submit(self, command: Command) -> None:
        if isinstance(command, Cancel):
            op = self._open.get(command.op_id)
            if op is not None and not isinstance(op.command, Forward):
                return
        super().submit(command)

    def _may_end(self, op: _Op) -> bool:
        if isinstance(op.command, Forward):
            for other in self._open.values():
                if other is op:
                    break
                if (
                    isinstance(other.command, Forward)
                    and other.command.instance == op.command.instance
                ):
                    return False
        return super()._may_end(op)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("check", PROMISED, ids=lambda check: check.name)
def test_the_scripted_backend_keeps_the_contract(check: BackendCheck, seed: int) -> None:
    def make(spec: BackendSpec) -> ScriptedBackend:
        del spec
        return QueuedBackend(Random(seed), can_cancel_unstarted=True)

    assert check(make, TRAITS).is_applicable

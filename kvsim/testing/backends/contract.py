"""The sentences of a backend's contract, word for word as `kvsim.core.ports.Backend` has them."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from kvsim.errors import BackendContractError


class Sentence(StrEnum):
    """A sentence of `kvsim.core.ports.Backend`, or of the ops that it executes."""

    ONE_COMPLETION = "Every submitted Forward and Transfer gives exactly one Completion."
    ONE_SETTLED = "After an outcome TIMED_OUT exactly one Settled follows."
    CANCEL_HAS_NO_ANSWER = "A Cancel has no answer of its own."
    FAILS_WITH_PREDECESSOR = (
        "An op whose predecessor (in `after`) did not end DONE ends FAILED; it does not hang."
    )
    SUBMISSION_ORDER = "Forwards of an instance run in submission order."
    PROGRESS = "Progress never depends on new work arriving."
    ENDS_DONE = (
        "An op ends DONE unless a fault, a Cancel, its deadline or a predecessor prevents it."
    )
    DEADLINE = (
        "No op ends TIMED_OUT before its `deadline_at`; one that is not at rest by then does."
    )
    ALL_STEPS = "A Forward that ends DONE has done all its steps unless it was cancelled."
    STEP_BOUNDARY = (
        "A Cancel ends a Forward that has started at a step boundary, DONE with at least one step;"
        " one that has not started may end CANCELLED, with none."
    )
    IDLE_CANCEL = "A Cancel of an op that is unknown, has ended or has timed out is ignored."
    DIFFERENCE_HOLDS = (
        "What a Forward says of the batch (`joined`, `left`, `grown`) holds for the next ones"
        " whatever its outcome."
    )
    FINISH_WINDOW = (
        "The finish time of an answer lies between the last `now()` and the next: an op that ended"
        " unseen before the last is dated then."
    )
    TIMES = "Times are ints, and `started_at <= finished_at`."
    LAYER_ORDER = "Layers finish in order, between the start and the finish of their op."
    SIDE_BY_SIDE = "Backends side by side do not disturb each other."

    CLOCK = "Return the time in nanoseconds. Never decreases."
    SUBMIT = "Take a command. Never blocks and never calls back."
    MISUSE = "If the op id is in flight, an op in `after` was never submitted, or it is closed."
    WAIT = "Return the next answers, at least one, ordered by (finish time, op id)."
    EMPTY_WAIT = (
        "Returns an empty sequence once `now() >= until`, and at once when `until` is None and"
        " nothing is in flight."
    )
    CLOSE = "Release threads, processes, memory and sockets. Idempotent."
    CLOSE_IN_FLIGHT = "May come while ops are in flight."

    GATE_OP = "Nothing starts before all of every op in `after` is finished."
    GATE_LAYER = "Layer l may start when layer l of every op in `after` is finished."
    STEPS_DONE = "`steps_done` counts finished steps of a Forward (0 for a Transfer)."
    LAYER_TIMES = (
        "`layers_finished_at` has one entry a layer where the backend was asked to record them,"
        " else it is empty."
    )
    REASON = "`reason` says why an op failed."


def broken(sentence: Sentence, problem: str) -> NoReturn:
    """Report that a sentence of the contract is broken.

    Raises
    ------
    BackendContractError
        Always.
    """
    raise BackendContractError(sentence.value, problem)


def require(condition: object, sentence: Sentence, problem: str) -> None:
    """Report that a sentence of the contract is broken unless `condition` holds.

    Raises
    ------
    BackendContractError
        If it does not hold.
    """
    if not condition:
        broken(sentence, problem)

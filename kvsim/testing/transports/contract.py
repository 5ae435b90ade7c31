"""The sentences of a transport's contract, as `kvsim.backends.transports.ports` has them."""

from __future__ import annotations

from enum import StrEnum
from typing import NoReturn

from kvsim.errors import ContractError


class TransportContractError(ContractError):
    """A transport broke its contract (see `kvsim.backends.transports.ports.Transport`)."""


class Sentence(StrEnum):
    """A sentence of the contract."""

    NEVER_BLOCKS = "what else can block is done elsewhere, and told by `poll`."
    ONE_END = (
        "Every write has one end, `WriteDone` or `WriteFailed`, and a failed one is settled once."
    )
    TAG_AFTER_BYTES = "A tag comes after the bytes of its write, never before."
    OTHERS = "What happens to one peer does not touch the others, nor later attempts at the same"
    DESCRIPTION = "At most `MAX_DESCRIPTION_BYTES`, for the control plane. It holds no secret."
    KEY = "An endpoint listens to nobody who has not shown that it has the key."
    NOTIFY = "Called whenever the medium has something new for `poll`, in a thread of the endpoint"
    CONNECT = "Ask for a connection to a peer: `Connected` or `ConnectFailed` follows, once."
    CONNECTED_ALREADY = (
        "Connected already with this description: `Connected` follows, and nothing else happens."
    )
    WRONG_DESCRIPTION = "If the description is not one of this transport, or of another peer."
    WRITE = "Ask for bytes of this region to be put into the peer's: one end follows."
    EMPTY = "With no bytes and no tag it is done at once, also if the peer is not connected."
    WAITS = "While the connection is under way, it waits for it;"
    NOT_CONNECTED = "with none, it fails (`Reason.CONNECT`)."
    TAG_ALONE = "It may go without bytes."
    RANGE = "If a piece reaches beyond one of the regions. Nothing has been written."
    MISUSE = (
        "If the id may not be new, the tag is too long, nothing is registered, or the endpoint is"
        " closed. Nothing has been written."
    )
    DEADLINE = "When it fails if it is not done, by the clock of the configuration."
    CANCEL = "End a write early: it fails (`Reason.CANCELLED`), unless it has ended."
    FLUSH = "Hold later writes to `peer` back until every earlier one has ended."
    DISCONNECT = "Give up the connection to a peer: its writes fail (`Reason.PEER_LOST`)."
    PEER_LOST = "A connection that had come to be is no more, whichever side had made it."
    CLOSE = "Give everything up: no thread, process, socket, file or memory is left."
    CLOSE_AGAIN = "May be called again, and at any time."


def broken(sentence: Sentence, problem: str) -> NoReturn:
    """Report that a sentence of the contract is broken.

    Raises
    ------
    TransportContractError
        Always.
    """
    raise TransportContractError(sentence.value, problem)


def require(condition: object, sentence: Sentence, problem: str) -> None:
    """Report that a sentence of the contract is broken unless `condition` holds.

    Raises
    ------
    TransportContractError
        If it does not hold.
    """
    if not condition:
        broken(sentence, problem)

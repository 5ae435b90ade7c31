"""Holds a transport to its contract: `check_transport` makes all checks."""

from kvsim.testing.transports.contract import Sentence, TransportContractError
from kvsim.testing.transports.stage import TransportCheck
from kvsim.testing.transports.suite import TRANSPORT_CHECKS, TransportReport, check_transport

__all__ = [
    "TRANSPORT_CHECKS",
    "Sentence",
    "TransportCheck",
    "TransportContractError",
    "TransportReport",
    "check_transport",
]

"""What a trace is, and what a format's reader must do."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import UserError
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kvsim.trace.source import Source


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in the order of their arrival, and where they come from.

    Parameters
    ----------
    requests
        `requests[i].request_id == i`; the first arrives at 0 and none before its predecessor.
    block_size
        Tokens a block key stands for.
    partial
        Whether `block_keys` include the last block of a prompt that does not fill it.
    name, format
        For people: usually the file's name without its ending, and the name of its format.
    sha256
        Of the bytes of the file, in hexadecimal digits; None if there was no file.
    repairs
        What the reader had to change or noticed, one sentence each; nothing is changed silently.

    Raises
    ------
    UserError
        If the requests break one of these rules.
    """

    requests: tuple[Request, ...]
    block_size: int
    partial: PartialRule
    name: str
    format: str
    sha256: str | None = None
    repairs: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UserError(f"block_size of a trace must be at least 1, not {self.block_size}")
        before = 0
        for index, request in enumerate(self.requests):
            if request.request_id != index:
                raise UserError(f"request {index} of a trace has request_id {request.request_id}")
            if request.arrived_at < before or (index == 0 and request.arrived_at):
                raise UserError(
                    f"request {index} of a trace arrives at {request.arrived_at} ns: the first must"
                    " arrive at 0 and the others in order"
                )
            before = request.arrived_at
            expected = num_blocks(request.num_input_tokens, self.block_size, self.partial)
            if len(request.block_keys) != expected:
                raise UserError(
                    f"request {index} of a trace has {len(request.block_keys)} block keys:"
                    f" {request.num_input_tokens} tokens make {expected} blocks"
                )

    @property
    def num_requests(self) -> int:
        """How many requests there are."""
        return len(self.requests)

    @property
    def num_references(self) -> int:
        """How many block keys the prompts have together. Counted anew at each call."""
        return sum(len(request.block_keys) for request in self.requests)

    @property
    def num_unique_blocks(self) -> int:
        """How many different block keys there are. Counted anew at each call."""
        return len(set(chain.from_iterable(request.block_keys for request in self.requests)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One request as the file gives it, its values checked and its times in nanoseconds.

    `block_ids` has one id for each block that `RowSource.partial` promises. `at_ns` and
    `cancel_at_ns` are on the file's own clock. `num_output_tokens` may be 0.
    """

    line: int
    at_ns: int
    num_input_tokens: int
    num_output_tokens: int
    block_ids: Sequence[int | str]
    session_id: str | None = None
    priority: int = 0
    cancel_at_ns: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """What a reader makes of a file: the rows, read as they are asked for, and their unit."""

    rows: Iterable[Row]
    block_size: int
    partial: PartialRule


class TraceReader(Protocol):
    """Reads one trace format. Everything that formats have in common is done for it.

    The reader checks each value and converts times; sorting, rebasing, interning and the partial
    rule are `kvsim.trace.assembly`'s. Its errors are `source.error(problem)`, which knows the line.
    """

    @property
    def name(self) -> str:
        """The format's name in the table."""

    @property
    def default_partial(self) -> PartialRule | None:
        """Which blocks the format gives ids to; None if each file says so itself."""

    def sniff(self, head: bytes) -> bool:
        """Return whether a file that begins with `head` is in this format. Must not raise."""

    def read(self, source: Source, *, block_size: int | None) -> RowSource:
        """Return the rows of `source`; may read no further than the row that is asked for.

        `block_size` is what the user says an id stands for; None: what the format or file says.

        Raises
        ------
        TraceError
            If the file, or `block_size` for this file, cannot be right. Also while iterating.
        """


def num_blocks(num_tokens: int, block_size: int, partial: PartialRule) -> int:
    """Return how many block keys a prompt has."""
    if partial is PartialRule.COUNT:
        return -(-num_tokens // block_size)
    return num_tokens // block_size

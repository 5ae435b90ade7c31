"""What a trace is, and what a format's reader must do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence  # noqa: TC003  a NamedTuple may be asked for its types
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, NamedTuple, Protocol

from kvsim.errors import UserError
from kvsim.trace.arrivals import ArrivalModel
from kvsim.trace.tokenizers import ByteTokenizer, Tokenizer
from kvsim.types import PartialRule, Request, RetentionRange

if TYPE_CHECKING:
    from kvsim.trace.source import Source


DEFAULT_BLOCK_SIZE = 64
"""Tokens a block where the file has no blocks: FastDeploy's default and the order of magnitude of
other engines."""


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
    num_disordered
        Rows of the file that were earlier than the row before.
    has_prefixes
        Whether the keys say what prompts share. False for a trace of lengths alone, where each
        prompt has blocks of its own and hit rates mean nothing.

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
    num_disordered: int = 0
    has_prefixes: bool = True

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UserError(f"block_size of a trace must be at least 1, not {self.block_size}")
        if self.requests and self.requests[0].arrived_at:
            self._complain(0, 0)
        size = self.block_size
        spare = size - 1 if self.partial is PartialRule.COUNT else 0
        before = 0
        for index, request in enumerate(self.requests):
            at = request.arrived_at
            if (
                request.request_id != index
                or at < before
                or len(request.block_keys) != (request.num_input_tokens + spare) // size
            ):
                self._complain(index, before)
            before = at

    def _complain(self, index: int, before: int) -> None:
        """Raise `UserError` about a request that breaks a rule."""
        request = self.requests[index]
        if request.request_id != index:
            raise UserError(f"request {index} of a trace has request_id {request.request_id}")
        if request.arrived_at < before or (index == 0 and request.arrived_at):
            raise UserError(
                f"request {index} of a trace arrives at {request.arrived_at} ns: the first must"
                " arrive at 0 and the others in order"
            )
        expected = num_blocks(request.num_input_tokens, self.block_size, self.partial)
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


class Row(NamedTuple):
    """One request as the file gives it, its values checked and its times in nanoseconds.

    `block_ids` has one id for each block that `RowSource.partial` promises; None is a block that
    only this prompt has. `at_ns` and `cancel_at_ns` are on the file's own clock.
    `num_output_tokens` may be 0. Written with the names of its fields.
    """

    line: int
    at_ns: int
    num_input_tokens: int
    num_output_tokens: int
    block_ids: Sequence[int | str | None]
    session_id: str | None = None
    priority: int = 0
    cancel_at_ns: int | None = None
    tenant: str | None = None
    retention: tuple[RetentionRange, ...] = ()
    output_retention: RetentionRange | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSource:
    """What a reader makes of a file: the rows, read as they are asked for, and their unit.

    Parameters
    ----------
    rows
        In the order of the file.
    block_size
        Tokens an id of the file stands for, or a block of the trace if the file has no ids.
    partial
        Which blocks of a prompt the rows have ids for.
    notes
        What the reader had to assume or repair; looked at when the last row has been taken.
    has_prefixes
        Whether the rows have `block_ids` at all; of lengths alone a sharing model makes them.
    is_private
        Whether ids mean nothing outside the reader, or some are None: all are numbered anew.
    """

    rows: Iterable[Row]
    block_size: int
    partial: PartialRule
    notes: Sequence[str] = ()
    has_prefixes: bool = True
    is_private: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """What the user says about a file beside its name.

    Parameters
    ----------
    block_size
        Tokens a block of the trace shall have. Formats with token ids or lengths make blocks of
        this size; ids of formats that have them are cut, by `load`.
    id_tokens
        Tokens an id of the file stands for; None: what the format or the file says.
    arrivals
        Where the file has no times, or only some relative to a conversation.
    tokenizer
        For text.
    """

    block_size: int | None = None
    id_tokens: int | None = None
    arrivals: ArrivalModel = field(default_factory=ArrivalModel)
    tokenizer: Tokenizer = field(default_factory=ByteTokenizer)

    @property
    def made_block_size(self) -> int:
        """The block size for formats without ids of blocks."""
        return self.block_size or DEFAULT_BLOCK_SIZE


class TraceReader(Protocol):
    """Reads one trace format. Everything that formats have in common is done for it.

    The reader checks each value and converts times; sorting, rebasing, interning and the partial
    rule are `kvsim.trace.assembly`'s. Its errors are `source.error(problem)`, which knows the line.
    """

    @property
    def name(self) -> str:
        """The format's name in the table."""

    def sniff(self, head: bytes) -> bool:
        """Return whether a file that begins with `head` is in this format. Must not raise."""

    def read(self, source: Source, options: ReadOptions) -> RowSource | Trace:
        """Return the rows of `source`; may read no further than the row that is asked for.

        A format that stores what assembly makes may return the whole trace instead.

        Raises
        ------
        TraceError
            If the file, or an option for this file, cannot be right. Also while iterating.
        """


def num_blocks(num_tokens: int, block_size: int, partial: PartialRule) -> int:
    """Return how many block keys a prompt has."""
    if partial is PartialRule.COUNT:
        return -(-num_tokens // block_size)
    return num_tokens // block_size

"""Claude Code conversations, as kv-cache-tester has them: a JSON file each, or a folder of them.

`id`, `block_size`, `hash_id_scope`, and `requests` with `t` (seconds since the conversation began),
`in`, `out`, `hash_ids`. A request of type "subagent" has `requests` of its own, whose `t` counts
from it. Only whole blocks have ids, and ids of scope "local" mean nothing in another file.

Source: the traces of the repository callanjfox/kv-cache-tester.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.plain_ids import times
from kvsim.trace.values import (
    int_list,
    is_text,
    made_length,
    parse_object,
    required,
    seconds_ns,
    shown,
    whole_number,
)
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_BLOCK_SIZE: Final = 64
_S_NS: Final = 10**9
_MAX_DEPTH: Final = 32


class ClaudeCodeReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "claude-code"

    def sniff(self, head: bytes) -> bool:
        """Return whether the file is one JSON object with requests that have ids."""
        return (
            head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"{")
            and b'"requests"' in head
            and (b'"hash_id_scope"' in head or b'"tool_tokens"' in head)
        )

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return the rows of a conversation, or of all in a folder; those start as modelled."""
        notes: list[str] = []
        conversations = _Conversations(options, notes)
        size = options.id_tokens or _BLOCK_SIZE
        return RowSource(
            rows=conversations.rows(source, size),
            block_size=size,
            partial=PartialRule.NEVER,
            notes=notes,
            is_private=True,
        )


READER = ClaudeCodeReader()


class _Conversations:
    """Reads conversations one after another; remembers what has to be told at the end."""

    def __init__(self, options: ReadOptions, notes: list[str]) -> None:
        self._options = options
        self._notes = notes
        self._num_requests = 0
        self._without_output: list[int] = []
        self._without_ids: list[int] = []

    def rows(self, source: Source, size: int) -> Iterator[Row]:
        """Yield the requests of every conversation; `line` is the number of the request."""
        starts = self._options.arrivals.starts()
        num_files = 0
        for num_files, member in enumerate(source.members(), start=1):
            document = parse_object(member, member.document(), what="a conversation")
            said = document.get("block_size", size)
            if said != size:
                raise member.error(
                    f"block_size is {shown(said)} in this file, but an id is read as {size} tokens;"
                    " load it with the id_tokens of the file"
                )
            name = document.get("id", member.path.stem)
            if not is_text(name):
                raise member.error(f"id must be text, not {shown(name)}")
            scope = str(num_files) if document.get("hash_id_scope", "local") == "local" else ""
            yield from self._requests(member, document, name, scope, next(starts), size, 0)
        self._tell(num_files)

    def _requests(
        self,
        source: Source,
        entry: dict[str, object],
        session: str,
        scope: str,
        start_ns: int,
        size: int,
        depth: int,
    ) -> Iterator[Row]:
        requests = required(source, entry, "requests")
        if type(requests) is not list:
            raise source.error(f"requests must be a list, not {shown(requests)}")
        if depth > _MAX_DEPTH:
            raise source.error(f"sub-agents nested more than {_MAX_DEPTH} deep")
        num_agents = 0
        for record in requests:
            self._num_requests += 1
            source.line = self._num_requests
            if type(record) is not dict:
                raise source.error(f"a request must be a JSON object, not {shown(record)}")
            at_ns = start_ns + seconds_ns(source, record, "t", unit="seconds", unit_ns=_S_NS)
            if record.get("type") == "subagent" or "requests" in record:
                num_agents += 1
                agent = f"{session}/{num_agents}"
                yield from self._requests(source, record, agent, scope, at_ns, size, depth + 1)
            else:
                yield self._row(source, record, session, scope, at_ns, size)

    def _row(
        self,
        source: Source,
        record: dict[str, object],
        session: str,
        scope: str,
        at_ns: int,
        size: int,
    ) -> Row:
        line = self._num_requests
        num_input_tokens = made_length(source, record, "in")
        ids = int_list(source, record, "hash_ids") if record.get("hash_ids") is not None else []
        if len(ids) > -(-num_input_tokens // size):
            raise source.error(
                f"{len(ids)} hash_ids do not fit in {num_input_tokens}: at {size} tokens an id it"
                f" has at most {-(-num_input_tokens // size)}"
            )
        if record.get("out") is None:
            self._without_output.append(line)
            record = {**record, "out": 0}
        num_full = num_input_tokens // size
        if len(ids) < num_full:
            self._without_ids.append(line)
        known: list[str | None] = [f"{scope}:{each}" for each in ids[:num_full]]
        return Row(
            line=line,
            at_ns=at_ns,
            num_input_tokens=num_input_tokens,
            num_output_tokens=whole_number(source, record, "out", least=0),
            block_ids=known + [None] * (num_full - len(known)),
            session_id=session,
        )

    def _tell(self, num_files: int) -> None:
        if num_files > 1:
            self._notes.append(
                f"{num_files} conversations without a common clock: they start as the arrival model"
                f" says, {self._options.arrivals.spec}"
            )
        for found, what in (
            (self._without_output, "without `out`"),
            (self._without_ids, "with fewer ids than full blocks, the others taken as its own"),
        ):
            if found:
                requests = times(len(found), "request")
                self._notes.append(f"{requests} {what}, first request {found[0]}")

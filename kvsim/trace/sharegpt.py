"""ShareGPT's JSON: conversations as text, without times and without token ids.

A list of `{id, conversations: [{from, value}]}`. Each answer of the model makes a request: its
prompt is all text before, its output the answer. Roles have no markers of their own: the prompt is
the text alone. `X_0`, `X_1`, ... are parts of conversation X: a part goes on where the part before
it ended, if they follow each other in the file. A conversation that begins with a turn of the
model has that turn as context.

Source: the dataset ShareGPT_Vicuna_unfiltered, and FastChat's script that split it.
"""

from __future__ import annotations

import re
from array import array
from typing import TYPE_CHECKING, Final

from kvsim.identity import chain_keys
from kvsim.trace.base import ReadOptions, Row, RowSource
from kvsim.trace.json_array import array_elements
from kvsim.trace.plain_ids import times
from kvsim.trace.token_ids import KeyNumbers
from kvsim.trace.values import is_text, required, session_text, shown
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_PART: Final = re.compile(r"(.+)_(\d+)")
_MODEL: Final = {"gpt", "chatgpt", "assistant", "model", "bard", "bing", "claude"}
_OTHERS: Final = {"human", "user", "system", "tool", "observation", "function_call", "function"}


class SharegptReader:
    """See `kvsim.trace.base.TraceReader`."""

    __slots__ = ()

    name = "sharegpt"

    def sniff(self, head: bytes) -> bool:
        """Return whether the file is an array of conversations."""
        return (
            head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"[")
            and b'"conversations"' in head
        )

    def read(self, source: Source, options: ReadOptions) -> RowSource:
        """Return a row for each answer; times are what the arrival model says."""
        notes = [
            f"no times in the file: made by the arrival model {options.arrivals.spec}; tokens are"
            f" those of the tokenizer {options.tokenizer.name}"
        ]
        return RowSource(
            rows=_Conversations(source, options, notes).rows(),
            block_size=options.made_block_size,
            partial=PartialRule.NEVER,
            notes=notes,
        )


READER = SharegptReader()


class _Conversations:
    """Reads one conversation after another, and remembers the last: the next may go on with it."""

    def __init__(self, source: Source, options: ReadOptions, notes: list[str]) -> None:
        self._source = source
        self._options = options
        self._notes = notes
        self._numbers = KeyNumbers()
        self._unanswered: list[int] = []
        self._name: str | None = None
        self._next_part = 0
        self._at_ns = 0
        self._tokens = array("q")
        self._key: bytes | None = None
        self._blocks: list[int] = []

    def rows(self) -> Iterator[Row]:
        """Yield a request for each answer."""
        starts = self._options.arrivals.starts()
        pauses = self._options.arrivals.pauses()
        for element in array_elements(self._source):
            turns = self._turns(element)
            if not self._goes_on(element):
                self._at_ns = next(starts)
                self._tokens, self._key, self._blocks = array("q"), None, []
            asked = False
            for role, text in turns:
                tokens = self._encoded(text)
                if role in _MODEL and asked and self._tokens:
                    yield self._row(len(tokens))
                    answered = self._options.arrivals.answered_at(self._at_ns, len(tokens))
                    self._at_ns = answered + next(pauses)
                asked = role not in _MODEL
                self._tokens.extend(tokens)
            if asked:
                self._unanswered.append(self._source.line or 0)
        if self._unanswered:
            self._notes.append(
                f"{times(len(self._unanswered), 'last message')} without an answer left out, first"
                f" in the conversation at line {self._unanswered[0]}"
            )

    def _row(self, num_output_tokens: int) -> Row:
        size = self._options.made_block_size
        first_token = len(self._blocks) * size
        keys = chain_keys(
            self._tokens[first_token:], size, parent=self._key, first_token=first_token
        )
        self._key = keys[-1] if keys else self._key
        self._blocks = self._blocks + self._numbers.of(keys)
        return Row(
            line=self._source.line or 0,
            at_ns=self._at_ns,
            num_input_tokens=len(self._tokens),
            num_output_tokens=num_output_tokens,
            block_ids=self._blocks,
            session_id=self._name,
        )

    def _goes_on(self, element: object) -> bool:
        """Take the conversation's name; return whether it is the next part of the one before."""
        assert isinstance(element, dict)  # `_turns` has looked
        name = session_text(self._source, "id", element.get("id"))
        found = _PART.fullmatch(name or "")
        part = int(found[2]) if found and len(found[2]) < 16 else None
        root = found[1] if found and part is not None else name
        goes_on = part is not None and root == self._name and part == self._next_part
        self._name, self._next_part = root, -1 if part is None else part + 1
        return goes_on

    def _turns(self, element: object) -> list[tuple[str, str]]:
        source = self._source
        if type(element) is not dict:
            raise source.error(f"a conversation must be a JSON object, not {shown(element)}")
        turns = required(source, element, "conversations")
        if type(turns) is not list:
            raise source.error(f"conversations must be a list, not {shown(turns)}")
        checked = []
        for turn in turns:
            if type(turn) is not dict:
                raise source.error(f"a turn must be a JSON object, not {shown(turn)}")
            role, text = required(source, turn, "from"), required(source, turn, "value")
            if type(role) is not str or role not in _MODEL | _OTHERS:
                known = ", ".join(sorted(_MODEL | _OTHERS))
                raise source.error(f"from must be one of {known}, not {shown(role)}")
            if not is_text(text):
                raise source.error(f"value must be text, not {shown(text)}")
            checked.append((role, text))
        return checked

    def _encoded(self, text: str) -> array[int]:
        tokens = self._options.tokenizer.encode(text)
        try:
            return array("q", iter(tokens))
        except (TypeError, OverflowError) as error:
            name = self._options.tokenizer.name
            raise self._source.error(f"tokenizer {name} gives no whole numbers: {error}") from error

"""The elements of a JSON array that is too large to be in memory at once."""

from __future__ import annotations

import json
from codecs import getincrementaldecoder
from typing import TYPE_CHECKING, Final

from kvsim.trace.source import MAX_LINE_BYTES
from kvsim.trace.values import DECODER, checked_json, json_problem

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.trace.source import Source

_CHUNK_BYTES: Final = 1 << 18
_SPACE: Final = " \t\r\n"


def array_elements(source: Source) -> Iterator[object]:
    """Yield the elements of the array that the file is; `source.line` is where each begins.

    An element that is not complete is tried again when twice as much of it has been read, so the
    whole costs no more than twice the decoding.

    Raises
    ------
    TraceError
        If the file is no array, or is cut short; says at which line the element began.
    """
    text = _Text(source)
    if text.next_sign() != "[":
        raise source.error("the file must be a JSON array of conversations")
    text.position += 1
    if text.next_sign() == "]":
        text.position += 1
    else:
        while True:
            text.next_sign()
            yield text.element()
            sign = text.next_sign()
            text.position += 1
            if sign == "]":
                break
            if sign != ",":
                raise source.error(
                    "the file ends within the array: it seems to be cut short"
                    if not sign
                    else f"not valid JSON: expected , or ] after a conversation, not {sign!r}"
                )
    if text.next_sign():
        raise source.error("not valid JSON: extra data after the array")


class _Text:
    """What has been read of the file and not been used: `rest[position:]`."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._decode = getincrementaldecoder("utf-8-sig")().decode
        self._is_whole = False
        self.rest = ""
        self.position = 0
        source.line = 1

    def next_sign(self) -> str:
        """Go to the next character that is no white space and return it; empty at the end."""
        while True:
            for index in range(self.position, len(self.rest)):
                if self.rest[index] not in _SPACE:
                    self._go_to(index)
                    return self.rest[index]
            self._go_to(len(self.rest))
            if not self._read(_CHUNK_BYTES):
                return ""

    def element(self) -> object:
        """Return the value that begins at `position`, and go to its end."""
        while True:
            try:
                value, end = checked_json(
                    self._source, lambda: DECODER.raw_decode(self.rest, self.position)
                )
            except json.JSONDecodeError as error:
                if not self._read(max(_CHUNK_BYTES, len(self.rest) - self.position)):
                    self._source.line = (self._source.line or 1) + self.rest.count(
                        "\n", self.position, error.pos
                    )
                    raise json_problem(self._source, "", error) from error
                if len(self.rest) - self.position > MAX_LINE_BYTES:
                    raise self._source.error(
                        f"not valid JSON, or a conversation of more than {MAX_LINE_BYTES >> 20} MiB"
                    ) from error
                continue
            if end == len(self.rest) and type(value) in (int, float) and self._read(_CHUNK_BYTES):
                continue  # a number may go on
            self._go_to(end)
            return value

    def _go_to(self, position: int) -> None:
        line = self._source.line or 1
        self._source.line = line + self.rest.count("\n", self.position, position)
        self.position = position

    def _read(self, num_bytes: int) -> bool:
        """Read more, forgetting what has been used; return whether there was more."""
        if self._is_whole:
            return False
        piece = self._source.read(num_bytes)
        self._is_whole = not piece
        try:
            more = self._decode(piece, not piece)
        except UnicodeDecodeError as error:
            raise self._source.error("not UTF-8 text, or cut short") from error
        self.rest = self.rest[self.position :] + more
        self.position = 0
        return bool(piece)

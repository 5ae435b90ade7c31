"""Tables as text: a head line with the names of the columns, then a request a line."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from kvsim.trace.values import LARGEST_NUMBER, shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kvsim.trace.source import Source


def head_names(head: bytes) -> list[str]:
    """Return the names of the columns of a table that begins with `head`, in lower case."""
    line = head.removeprefix(b"\xef\xbb\xbf").lstrip().partition(b"\n")[0]
    return [name.strip().strip('"').lower() for name in line.decode("utf-8", "replace").split(",")]


def table_rows(source: Source, needed: Sequence[str]) -> Iterator[dict[str, str]]:
    """Yield each row by the names of its columns, in lower case.

    Raises
    ------
    TraceError
        If a needed column is missing, or a row has more or fewer fields than the head.
    """
    names: list[str] = []
    for text in source:
        fields = _fields(source, text)
        if not names:
            names = [name.lower() for name in fields]
            if missing := [name for name in needed if name not in names]:
                found = ", ".join(map(shown, names[:8]))
                raise source.error(f"column {missing[0]!r} is missing; columns seen: {found}")
            continue
        if len(fields) != len(names):
            cut = "" if text.endswith("\n") else "; the file seems to be cut short"
            raise source.error(f"{len(fields)} fields, but {len(names)} columns{cut}")
        yield dict(zip(names, fields, strict=True))


def count_of(
    source: Source, row: dict[str, str], column: str, *, most: int = LARGEST_NUMBER
) -> int:
    """Return the value of a field that must be a whole number from 0 to `most`."""
    text = row[column]
    # some tables have passed through a library that writes 12 as 12.0
    digits = text.removesuffix(".0")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > 16:
        raise source.error(f"{column} must be a whole number from 0, not {shown(text)}")
    number = int(digits)
    if number > most:
        raise source.error(f"{column} must be at most {most}, not {shown(text)}")
    return number


def fraction_ns(digits: str) -> int:
    """Return the nanoseconds of the digits after a decimal point, however many there are."""
    return int(digits[:9].ljust(9, "0"))


def _fields(source: Source, text: str) -> list[str]:
    try:
        rows = list(csv.reader([text], strict=True))
    except csv.Error as error:
        raise source.error(f"not a row of a CSV file: {error}") from error
    return [field.strip() for field in rows[0]] if rows else []

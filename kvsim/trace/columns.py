"""Make many requests at once, a field at a time."""

from __future__ import annotations

from collections import deque
from dataclasses import fields
from itertools import repeat
from typing import TYPE_CHECKING

from kvsim.types import Request

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def requests_from_columns(columns: Mapping[str, Iterable[object]], count: int) -> list[Request]:
    """Return `count` requests; `columns` has a field's values by its name, defaults may lack.

    A frozen dataclass sets its fields one by one in Python, at 2 us a request: a third of the time
    it takes to load a trace. Its slots, filled a column at a time in C, take a fifth of that. A
    `Request` checks nothing when it is made, so nothing is skipped.
    """
    requests = list(map(object.__new__, repeat(Request, count)))
    for field in fields(Request):
        values = columns[field.name] if field.name in columns else repeat(field.default, count)
        fill = vars(Request)[field.name].__set__
        deque(map(fill, requests, values), maxlen=0)
    return requests

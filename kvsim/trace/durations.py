"""Times on one line: `10s`, `2.5ms`."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Final

_TIME: Final = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?)(ns|us|ms|s)")
_UNITS_NS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def duration_ns(text: str) -> int | None:
    """Return the nanoseconds that `text` stands for; None if it is no number with a unit."""
    found = _TIME.fullmatch(text)
    return None if found is None else int(Decimal(found[1]) * _UNITS_NS[found[2]])

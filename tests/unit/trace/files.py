"""Small trace files for the tests."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import TraceError
from kvsim.trace import load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def saved(folder: Path, content: str | bytes, name: str = "trace") -> Path:
    """Write a file; return its path."""
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def json_lines(*records: object) -> str:
    """Return records as JSON Lines."""
    return "".join(f"{json.dumps(record)}\n" for record in records)


def problem_of(path: Path, read: Callable[..., object] = load, **options: object) -> str:
    """Return the one line that `read(path)` raises, without the path."""
    with pytest.raises(TraceError) as caught:
        read(path, **options)
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}")

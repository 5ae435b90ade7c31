from __future__ import annotations

from hashlib import sha256
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import TraceError, UnknownNameError
from kvsim.trace import fetch
from kvsim.trace.fetching import PUBLIC_TRACES, PublicTrace

if TYPE_CHECKING:
    from pathlib import Path

CONTENT = b"a trace\n" * 100_000


@pytest.fixture
def known(tmp_path: Path) -> dict[str, PublicTrace]:
    """Put a file where an address leads, and return a table with its name."""
    (tmp_path / "far").mkdir()
    (tmp_path / "here").mkdir()
    (tmp_path / "far" / "trace.jsonl").write_bytes(CONTENT)
    address = (tmp_path / "far" / "trace.jsonl").as_uri()
    right = PublicTrace(
        address=address, sha256=sha256(CONTENT).hexdigest(), licence="CC0-1.0", about="a test"
    )
    wrong = PublicTrace(address=address, sha256="0" * 64, licence="CC0-1.0", about="a test")
    return {"right": right, "wrong": wrong}


def test_a_file_is_fetched_once(tmp_path: Path, known: dict[str, PublicTrace]) -> None:
    calls: list[tuple[int, int]] = []
    path = fetch(
        "right", tmp_path / "here", known=known, progress=lambda a, b: calls.append((a, b))
    )
    assert path == tmp_path / "here" / "trace.jsonl"
    assert path.read_bytes() == CONTENT
    assert calls[-1] == (len(CONTENT), len(CONTENT))
    (tmp_path / "far" / "trace.jsonl").unlink()
    assert fetch("right", tmp_path / "here", known=known) == path  # nothing was downloaded


def test_other_content_never_gets_the_name(tmp_path: Path, known: dict[str, PublicTrace]) -> None:
    old = tmp_path / "here" / "trace.jsonl"
    old.write_text("old")
    with pytest.raises(TraceError, match=r"has other content now: its sha256 is .* not 0000") as e:
        fetch("wrong", tmp_path / "here", known=known)
    assert "\n" not in str(e.value)
    assert old.read_text() == "old"
    assert [each.name for each in old.parent.iterdir()] == ["trace.jsonl"]


def test_without_a_way_there_the_address_is_told(
    tmp_path: Path, known: dict[str, PublicTrace]
) -> None:
    (tmp_path / "far" / "trace.jsonl").unlink()
    closed = PublicTrace(
        address="http://127.0.0.1:1/t.jsonl", sha256="0" * 64, licence="CC0-1.0", about="closed"
    )
    for name in ("right", "closed"):
        with pytest.raises(TraceError, match=r"cannot be fetched: .* by other means") as caught:
            fetch(name, tmp_path / "here", known={**known, "closed": closed})
        assert "\n" not in str(caught.value)
    assert list((tmp_path / "here").iterdir()) == []
    with pytest.raises(TraceError, match="no such file or directory"):
        fetch("right", tmp_path / "absent", known=known)
    with pytest.raises(UnknownNameError, match=r"unknown public trace 'rigt'\. Did you mean"):
        fetch("rigt", known=known)


def test_the_table_is_complete(public_traces: Path) -> None:
    for public in PUBLIC_TRACES.values():
        assert public.address.startswith("https://")
        assert len(public.sha256) == 64
        assert public.licence
        found = list(public_traces.glob(f"*/{public.file_name}"))
        for file in found:  # what is at hand is what the table says
            assert sha256(file.read_bytes()).hexdigest() == public.sha256

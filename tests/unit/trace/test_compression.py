from __future__ import annotations

import gzip
import json
from hashlib import sha256
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest

from kvsim.trace import load, write
from kvsim.trace.compression import compressed
from tests.unit.trace.files import problem_of, saved

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ROWS = "".join(
    json.dumps({"timestamp": i, "input_length": 9, "output_length": 1, "hash_ids": [i * 7919]})
    + "\n"
    for i in range(8_000)
).encode()


def zstd(data: bytes) -> bytes:
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


BOTH = pytest.mark.parametrize("pack", [gzip.compress, zstd])


@BOTH
def test_compressed_files_are_read_whatever_their_name(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(ROWS)
    trace = load(saved(tmp_path, packed))
    assert trace.requests == load(saved(tmp_path, ROWS, "plain")).requests
    assert trace.sha256 == sha256(packed).hexdigest()  # of the file as it is on disk
    # files that were compressed piece by piece
    half = ROWS.index(b"\n", len(ROWS) // 2) + 1
    parts = saved(tmp_path, pack(ROWS[:half]) + pack(ROWS[half:]))
    assert load(parts).requests == trace.requests


@BOTH
def test_a_compressed_file_that_is_cut_short_says_where(
    tmp_path: Path, pack: Callable[[bytes], bytes]
) -> None:
    packed = pack(ROWS)
    problem = problem_of(saved(tmp_path, packed[: len(packed) // 2]))
    assert problem.endswith("data are cut short")
    line = int(problem.split(":")[1])
    assert 2_000 < line < 6_000  # half of the compressed bytes are about half of the rows
    assert problem_of(saved(tmp_path, packed[:20])).endswith("data are cut short")


@BOTH
def test_a_damaged_file_says_so(tmp_path: Path, pack: Callable[[bytes], bytes]) -> None:
    packed = bytearray(pack(ROWS))
    packed[100:140] = bytes(40)
    with pytest.raises(Exception, match=r"data are damaged|data are cut short|not valid JSON"):
        load(saved(tmp_path, bytes(packed)))


def test_equal_traces_give_equal_compressed_files(tmp_path: Path) -> None:
    trace = load(saved(tmp_path, ROWS), limit=50)
    for name in ("a.jsonl", "a.jsonl.gz", "a.jsonl.zst", "a.parquet"):
        write(trace, tmp_path / name)
        first = (tmp_path / name).read_bytes()
        write(trace, tmp_path / name)
        assert (tmp_path / name).read_bytes() == first
        assert load(tmp_path / name).requests == trace.requests
    assert (tmp_path / "a.jsonl.gz").read_bytes()[:2] == b"\x1f\x8b"
    assert gzip.decompress(compressed(ROWS, ".gz")) == ROWS


def test_a_line_without_end_does_not_fill_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsim.trace.source.MAX_LINE_BYTES", 1 << 20)
    bomb = gzip.compress(b'{"timestamp": 1, "input_length": 5, "hash_ids": [' + b"1," * (1 << 21))
    assert problem_of(saved(tmp_path, bomb)) == ":1: a line of more than 1 MiB"


def test_reading_reports_how_far_it_is(tmp_path: Path) -> None:
    path = saved(tmp_path, ROWS)
    calls: list[tuple[int, int]] = []
    load(path, progress=lambda done, total: calls.append((done, total)))
    assert calls == sorted(calls)
    assert calls[-1] == (len(ROWS), len(ROWS))
    assert len(calls) > 1

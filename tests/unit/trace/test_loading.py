from __future__ import annotations

import sys
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import ConfigError, TraceError, UnknownNameError
from kvsim.trace import TRACES, format_names, load, reader
from kvsim.trace.paths import os_problem

ROW = b'{"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]}\n'
HEADER = b'{"format":"kvsim-trace","version":1,"block_size":8,"time_unit":"ms","partial":"never"}\n'
OWN_ROW = b'{"at":0,"input":9,"output":1,"blocks":[1]}\n'


def problem_of(path: Path, **options: object) -> str:
    with pytest.raises(TraceError) as caught:
        load(path, **options)  # type: ignore[arg-type]
    message = str(caught.value)
    assert "\n" not in message
    return message.removeprefix(f"{path}: ")


@pytest.mark.parametrize(
    ("content", "name"),
    [
        (ROW, "mooncake"),
        (b"\xef\xbb\xbf" + ROW, "mooncake"),
        (b"\r\n\r\n" + ROW.replace(b"\n", b"\r\n"), "mooncake"),
        (HEADER + OWN_ROW, "kvsim"),
        (b"\n" + HEADER + b"\n" + OWN_ROW[:-1], "kvsim"),
    ],
)
def test_the_format_is_found_from_the_content(tmp_path: Path, content: bytes, name: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    trace = load(path)
    assert trace.format == name
    assert trace.num_requests == 1
    assert trace.sha256 == sha256(content).hexdigest()
    assert load(str(path), format=name) == trace


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"", "the file is empty"),
        (b" \n\n", "the file is empty"),
        (b"\x89PNG\0\0", f"a binary file, not a trace; known formats: {', '.join(TRACES)}"),
        (
            ROW.decode().encode("utf-16"),
            f"a binary file, not a trace; known formats: {', '.join(TRACES)}",
        ),
        (
            b"TIMESTAMP,ContextTokens\n",
            f"not a trace in a known format ({', '.join(TRACES)}); name one to see why",
        ),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    path = tmp_path / "data"
    path.write_bytes(content)
    assert problem_of(path) == problem


def test_a_named_format_says_why_a_file_is_none(tmp_path: Path) -> None:
    path = tmp_path / "data"
    for content, problem in (
        (b"", "there is no request in it"),
        (b"a,b\n", f"{path}:1: not valid JSON: Expecting value at column 1"),
        (ROW + b"\n\xff" + ROW, f"{path}:3: not UTF-8 text: byte 0xff at 0"),
    ):
        path.write_bytes(content)
        assert problem_of(path, format="mooncake") == problem


def test_a_path_that_is_no_file_is_refused(tmp_path: Path) -> None:
    assert problem_of(tmp_path) == "a directory; name a file in it"
    assert problem_of(tmp_path / "absent") == "no such file or directory"
    assert problem_of(Path()) == "'.': not the name of a file"
    assert problem_of(Path("a\0b")) == "'a\\x00b': not the name of a file"
    assert problem_of(tmp_path / ("x" * 300)) == "cannot be read: File name too long"


def test_a_missing_permission_is_told_without_an_error_number() -> None:
    error = PermissionError(13, "Permission denied")
    assert os_problem(error) == "cannot be read: no permission"
    assert os_problem(error, doing="written") == "cannot be written: no permission"


def test_unknown_names_are_told_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        load(tmp_path, format="moonkake")
    assert str(caught.value) == (
        "unknown trace format 'moonkake'. Did you mean 'mooncake'? Known: "
        f"{', '.join(sorted(TRACES))}."
    )
    with pytest.raises(UnknownNameError, match="unknown partial rule 'maybe'"):
        load(tmp_path, partial="maybe")


@pytest.mark.parametrize("value", [0, -1, True, 1.5, "3"])
def test_limit_and_block_size_are_positive_integers(tmp_path: Path, value: int) -> None:
    with pytest.raises(ConfigError, match="limit must be an integer of at least 1"):
        load(tmp_path, limit=value)
    with pytest.raises(ConfigError, match="block_size must be an integer of at least 1"):
        load(tmp_path, block_size=value)


def test_partial_blocks_without_ids_cannot_count(tmp_path: Path) -> None:
    path = tmp_path / "data"
    path.write_bytes(HEADER + OWN_ROW)
    assert problem_of(path, partial="count") == (
        "partial='count' needs an id for the last block of each prompt, but this file names whole"
        " blocks only; use partial='never'"
    )


@pytest.mark.parametrize("name", TRACES)
def test_every_reader_keeps_the_contract(name: str) -> None:
    found = reader(name)
    assert found.name == name
    for head in (b"", b"\0\xff", b"{", b"[" * 10_000, b"\n\n"):
        assert found.sniff(head) is False


def test_another_package_adds_a_format_through_an_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site"
    (package / "other-1.dist-info").mkdir(parents=True)
    (package / "other-1.dist-info" / "METADATA").write_text("Name: other\nVersion: 1\n")
    (package / "other-1.dist-info" / "entry_points.txt").write_text(
        "[kvsim.traces]\nmine = other_reader:READER\nbroken = other_absent:READER\n"
    )
    (package / "other_reader.py").write_text(
        "from kvsim.trace.base import Row, RowSource\n"
        "from kvsim.types import PartialRule\n"
        "class Reader:\n"
        "    name = 'mine'\n"
        "    def sniff(self, head): return head.startswith(b'mine')\n"
        "    def read(self, source, options):\n"
        "        rows = [Row(line=source.line, at_ns=0, num_input_tokens=5, num_output_tokens=1,"
        " block_ids=[3]) for text in source]\n"
        "        return RowSource(rows=rows, block_size=4, partial=PartialRule.NEVER)\n"
        "READER = Reader()\n"
    )
    monkeypatch.syspath_prepend(package)
    from kvsim.trace import loading

    loading._entry_points.cache_clear()  # noqa: SLF001  the test runs before and after others
    try:
        assert set(format_names()) == {*TRACES, "mine", "broken"}
        path = tmp_path / "data"
        path.write_bytes(b"mine\n")
        trace = load(path, format="mine")
        assert (trace.format, trace.requests[0].block_keys) == ("mine", (3,))
        with pytest.raises(ConfigError, match="'broken' cannot be loaded: No module named"):
            reader("broken")
    finally:
        loading._entry_points.cache_clear()  # noqa: SLF001
        sys.modules.pop("other_reader", None)


@given(
    st.sampled_from([ROW * 2, HEADER + OWN_ROW * 2]),
    st.integers(0, 200),
    st.integers(0, 5),
    st.one_of(
        st.binary(max_size=5),
        st.sampled_from(
            [b"-1", b"1e999", b"NaN", b"null", b"true", b"[[", b'"', b"{}", b"\n", b"1.5"]
        ),
    ),
    st.sampled_from([None, *TRACES]),
)
def test_a_damaged_file_gives_a_trace_or_one_line(
    tmp_path_factory: pytest.TempPathFactory,
    good: bytes,
    position: int,
    num_lost: int,
    inserted: bytes,
    name: str | None,
) -> None:
    path = tmp_path_factory.mktemp("damaged") / "data"
    path.write_bytes(good[:position] + inserted + good[position + num_lost :])
    problem = ""
    try:
        load(path, format=name)
    except TraceError as error:
        problem = str(error)
    assert len(problem.splitlines()) <= 1

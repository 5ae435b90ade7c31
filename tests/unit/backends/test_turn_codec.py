"""Every kind of value comes back from a recording as it was, or is not taken into one."""

from __future__ import annotations

import os
import subprocess
import sys
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.backends.turn_codec import End, Failure, Header, Turn
from kvsim.backends.turns import RecordingError, TurnReader
from kvsim.types import Request
from tests.unit.recordings import read, record_story

if TYPE_CHECKING:
    from collections.abc import Hashable

from tests.unit.backends.turn_values import (
    ANSWERS,
    COMMANDS,
    EVENTS,
    KINDS,
    PATH,
    failures,
    headers,
    requests,
    turns,
    written,
)

ROOT = Path(__file__).parents[3]


@given(headers, st.lists(requests, max_size=3), st.lists(turns, max_size=3), failures | st.none())
def test_what_is_written_comes_back(
    header: Header, told: list[Request], run: list[Turn], failure: Failure | None
) -> None:
    reader = TurnReader(BytesIO(written(header, told, run, failure)), PATH)
    assert reader.header == header._replace(num_requests=len(told))
    assert list(reader.requests) == told
    assert list(reader) == run
    assert reader.end == End(len(run), failure)


@pytest.mark.parametrize("kind", KINDS)
@given(st.data())
def test_a_value_comes_back_as_its_own_type_to_the_last_part(
    kind: type, data: st.DataObject
) -> None:
    # The repr, since an equal tuple of another type is equal, and so is True to 1.
    value = data.draw(KINDS[kind])
    turn = Turn(
        now=0,
        commands=(value,) if kind in COMMANDS else (),
        answers=(value,) if kind in ANSWERS else (),
        events=(value,) if kind in EVENTS else (),
    )
    (back,) = read(written(run=[turn]), PATH)
    assert repr(back) == repr(turn)


@pytest.mark.parametrize(
    "key", [1.5, None, True, frozenset([1]), 2**64, -(2**63) - 1, (1, (2.5,)), PATH, "\ud800"]
)
def test_a_block_key_that_would_not_come_back_is_refused(key: Hashable) -> None:
    request = Request(
        request_id=7, arrived_at=0, block_keys=[1, key], num_input_tokens=8, num_output_tokens=1
    )
    with pytest.raises(RecordingError, match=r"^run\.turns: .*cannot be recorded: "):
        written(told=[request])


def test_a_key_that_is_nested_without_end_is_refused() -> None:
    key: tuple[object, ...] = ()
    for _ in range(10_000):
        key = (key,)
    request = Request(
        request_id=7, arrived_at=0, block_keys=[key], num_input_tokens=4, num_output_tokens=1
    )
    with pytest.raises(RecordingError, match="block key 0 of request 7 must be a 64-bit integer"):
        written(told=[request])


def test_without_msgspec_one_line_says_how_to_get_it(tmp_path: Path) -> None:
    program = (
        "import sys; sys.modules['msgspec'] = None\n"
        "from kvsim.cli import main\n"
        "from pathlib import Path\n"
        "from kvsim.errors import ConfigError\n"
        "from tests.unit.recordings import record_story\n"  # can be imported all the same
        "try: record_story(Path(sys.argv[1] + 'new'))\n"
        "except ConfigError as error: print(error)\n"
        "sys.exit(main(['rerun', sys.argv[1]]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(record_story(tmp_path / "a"))],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    problem = "recordings need msgspec, which is not installed: pip install 'kvsim[workers]'\n"
    assert (done.returncode, done.stdout, done.stderr) == (2, problem, f"kvsim: {problem}")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]

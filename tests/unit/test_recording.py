"""A recorded run is decided again in the same way, and everything else is told apart."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.analysis.records import EventLog
from kvsim.backends.turn_codec import End
from kvsim.backends.turns import RecordingError
from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Settled, Transfer
from kvsim.errors import (
    TraceError,
    UnknownNameError,
)
from kvsim.events import AttemptEnded, BlocksRemoved, RequestEnded
from kvsim.policies.lru import LRU
from kvsim.presets import find_hardware, find_model
from kvsim.recording import rerun
from kvsim.replay_config import ReplayConfig
from kvsim.trace import load
from tests.unit.recordings import (
    BUSY,
    STORY,
    busy_trace,
    contents,
    record,
    record_story,
    rewrite,
)
from tests.unit.stories import back_from_below

ROOT = Path(__file__).parents[2]


@pytest.fixture
def story(tmp_path: Path) -> Path:
    return record_story(tmp_path / "story.turns")


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a recording that nobody may change."""
    path = tmp_path_factory.mktemp("busy") / "busy.turns"
    record(path, busy_trace(), BUSY)
    return path


# -- the same again


def test_a_run_in_which_much_goes_wrong_is_decided_again_alike(busy: Path) -> None:
    again = rerun(busy)
    assert (again.identical, again.difference, again.error) == (True, None, None)
    assert again.ended_well
    assert again.turns > 500


def test_much_does_go_wrong_in_it(busy: Path) -> None:
    _, requests, turns, end = contents(busy)
    assert end == End(len(turns), None)
    assert len(requests) == 120
    assert {type(each) for turn in turns for each in turn.commands} == {Forward, Transfer, Cancel}
    answers = [each for turn in turns for each in turn.answers or ()]
    outcomes = {each.outcome for each in answers if isinstance(each, Completion)}
    assert outcomes == {Outcome.DONE, Outcome.FAILED, Outcome.TIMED_OUT}
    assert any(isinstance(each, Settled) for each in answers)
    events = [each for turn in turns for each in turn.events]
    reasons = {each.reason.value for each in events if isinstance(each, AttemptEnded)}
    assert reasons >= {"finished", "preempted", "restarted"}
    ends = {each.status for each in events if isinstance(each, RequestEnded)}
    assert ends == {"finished", "cancelled", "refused"}
    causes = {each.cause.value for each in events if isinstance(each, BlocksRemoved)}
    assert causes >= {"evicted", "demoted", "promoted"}


def test_recording_changes_nothing_about_the_run(busy: Path, tmp_path: Path) -> None:
    log = EventLog()
    record(tmp_path / "again.turns", busy_trace(), BUSY, onward=log)
    assert (tmp_path / "again.turns").read_bytes() == busy.read_bytes()
    assert log.events == [event for turn in contents(busy)[2] for event in turn.events]


@pytest.mark.parametrize("seed", ["0", "1", "7"])
def test_the_hash_seed_of_the_process_makes_no_difference(
    busy: Path, tmp_path: Path, seed: str
) -> None:
    program = (
        "import sys; from pathlib import Path\n"
        "from kvsim.recording import rerun\n"
        "from tests.unit.recordings import BUSY, busy_trace, record\n"
        "record(Path(sys.argv[1]), busy_trace(), BUSY)\n"
        "print(rerun(sys.argv[2]).identical)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "new.turns"), str(busy)],
        env=os.environ | {"PYTHONPATH": str(ROOT), "PYTHONHASHSEED": seed},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("True\n", "")
    assert (tmp_path / "new.turns").read_bytes() == busy.read_bytes()


@given(
    st.integers(0, 10**6),
    st.integers(5, 20),
    st.integers(0, 12),
    st.sampled_from([0.0, 0.02]),
    st.sampled_from(["overlap", "wait"]),
    st.sampled_from(["lru", "fifo", "belady"]),
)
def test_any_run_is_decided_again_alike(
    tmp_path_factory: pytest.TempPathFactory,
    seed: int,
    gpu_blocks: int,
    cpu_blocks: int,
    fault_rate: float,
    swap_in: str,
    policy: str,
) -> None:
    path = tmp_path_factory.mktemp("any") / "run.turns"
    config = replace(
        BUSY, seed=seed, gpu_blocks=gpu_blocks, cpu_blocks=cpu_blocks, swap_in=swap_in,
        fail_rate=fault_rate, hang_rate=fault_rate, policy=policy,
    )  # fmt: skip
    record(path, busy_trace(30), config)
    again = rerun(path)
    assert again.difference is None
    assert again.ended_well


def test_a_public_trace_with_two_tiers_is_decided_again_alike(
    public_traces: Path, tmp_path: Path
) -> None:
    trace = load(public_traces / "mooncake" / "conversation_trace.jsonl", limit=2000)
    record(tmp_path / "a", trace, ReplayConfig(gpu_blocks=1939, cpu_blocks=5818))
    assert rerun(tmp_path / "a").identical


def test_a_model_and_a_machine_of_ones_own_come_back(tmp_path: Path) -> None:
    config = replace(
        STORY,
        model=replace(find_model("deepseek-v3"), name="mine"),
        hardware=replace(find_hardware("a100-8x"), name="ours"),
    )
    record(tmp_path / "a", back_from_below(), config)
    assert rerun(tmp_path / "a").identical


# -- what cannot be rerun


def test_a_policy_without_a_known_name_must_be_given(tmp_path: Path) -> None:
    path = tmp_path / "a"
    record(path, back_from_below(), STORY, policy=ByName)
    with pytest.raises(RecordingError, match=r"a: its policy 'ByName' is not known by this name:"):
        rerun(path)
    assert rerun(path, policy=ByName).identical


class ByName(LRU):
    """LRU by another name."""


def test_a_policy_that_is_asked_for_must_exist(story: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'lru'"):
        rerun(story, policy="lruu")


def test_another_policy_decides_otherwise_and_it_is_told_where(busy: Path) -> None:
    again = rerun(busy, policy="fifo")
    assert again.difference is not None
    assert again.difference.startswith("turn ")
    assert type(again.error).__name__ == "DivergenceError"
    assert again.turns == rerun(busy).turns


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"gpu_blocks": 0}, "gpu_blocks must be an integer of at least 1, not 0"),
        ({"gpu_blocks": "3"}, "gpu_blocks must be an integer of at least 1, not '3'"),
        ({"gpu_block": 3}, "unknown setting 'gpu_block'. Did you mean 'gpu_blocks'?"),
        ({"seed": -1}, "seed must be an integer of at least 0, not -1"),
        ({"model": "llama"}, "unknown model 'llama'"),
        ({"model": {"name": "x"}}, "model lacks "),
        ({"model": {"name": "x", "layers": 3}}, "unknown key of model 'layers'"),
        ({"hardware": {"host_link": 3}}, "host_link must be a table, not 3"),
        ({"swap_in": 3}, "swap_in must be text, not 3"),
        ({"fail_rate": "x"}, "fail_rate must be between 0 and 1, not 'x'"),
        ({"instant": True}, "its settings must not be instant, and must say gpu_blocks"),
        ({"gpu_blocks": None}, "its settings must not be instant, and must say gpu_blocks"),
    ],
)
def test_settings_that_cannot_be_right_are_refused(
    story: Path, settings: dict[str, object], problem: str
) -> None:
    header = contents(story)[0]
    changed: dict[str, object] = {**header.settings, **settings}
    rewrite(story, header=header._replace(settings=changed))  # type: ignore[arg-type]
    with pytest.raises(RecordingError) as caught:
        rerun(story)
    assert str(caught.value).startswith(f"{story}: it cannot be rerun: {problem}")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"arrived_at": -1}, "request 1 of a trace arrives at -1 ns"),
        ({"request_id": 5}, "request 1 of a trace has request_id 5"),
        ({"num_input_tokens": 99}, "request 1 of a trace has 3 block keys"),
    ],
)
def test_requests_that_make_no_trace_are_refused(
    story: Path, change: dict[str, int], problem: str
) -> None:
    one, two, three = contents(story)[1]
    rewrite(story, requests=[one, replace(two, **change), three])  # type: ignore[arg-type]
    with pytest.raises(RecordingError, match=f"it cannot be rerun: {problem}"):
        rerun(story)


def test_a_file_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match=r"a: no such file or directory$"):
        rerun(tmp_path / "a")
    with pytest.raises(RecordingError, match="a directory; name a file in it"):
        rerun(tmp_path)
    with pytest.raises(TraceError, match="not the name of a file"):
        rerun("")


def test_damage_after_a_difference_is_told_rather_than_the_difference(
    busy: Path, tmp_path: Path
) -> None:
    path = tmp_path / "cut.turns"
    path.write_bytes(busy.read_bytes()[:-3])
    with pytest.raises(RecordingError, match="cut short"):
        rerun(path, policy="fifo")

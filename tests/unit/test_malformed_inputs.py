"""Whatever is wrong with the input: exit code 2, one line that says what, and no file."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.cli import main
from kvsim.errors import UserError
from kvsim.trace import write
from tests.unit.stories import three_prompts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

GOOD = {"timestamp": 0, "input_length": 700, "output_length": 5, "hash_ids": [1, 2]}


@pytest.fixture
def desk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Go to an empty folder with one good trace."""
    monkeypatch.chdir(tmp_path)
    write(three_prompts(), tmp_path / "good.jsonl")
    return tmp_path


def complaint(desk: Path, command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Run a command that must fail as said above; return its one line."""
    before = sorted(desk.rglob("*"))
    code = main(command)
    out, err = capsys.readouterr()
    assert (code, out) == (2, "")
    assert err.startswith("kvsim: ")
    assert err.count("\n") == 1
    assert err.endswith("\n")
    assert "Traceback" not in err
    assert sorted(desk.rglob("*")) == before
    return err.removeprefix("kvsim: ").rstrip("\n")


def row(**changes: object) -> bytes:
    return json.dumps(GOOD | changes).encode() + b"\n"


def without(field: str) -> bytes:
    return json.dumps({name: value for name, value in GOOD.items() if name != field}).encode()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(row() + row()[:30], ":2: not valid JSON", id="truncated"),
        pytest.param(row(input_length=2000), ":1: 2 hash_ids do not fit input_length", id="misfit"),
        pytest.param(
            row() + row(timestamp=-1), ":2: timestamp must be a number", id="negative time"
        ),
        pytest.param(row(timestamp=1e400), ":1: Infinity is not a number", id="infinite time"),
        pytest.param(row(timestamp=2**60), ":1: timestamp must be a number", id="huge time"),
        pytest.param(row(input_length=10**30), ":1: input_length must be", id="huge length"),
        pytest.param(
            row().replace(b"700", b"9" * 5000), ":1: not valid JSON: a number with", id="digits"
        ),
        pytest.param(row(input_length=float("nan")), ":1: NaN is not a number", id="NaN"),
        pytest.param(row(input_length=0), ":1: input_length must be", id="no input"),
        pytest.param(row(hash_ids=[1, "x"]), ":1: each of hash_ids must be", id="text as id"),
        pytest.param(row(hash_ids=7), ":1: hash_ids must be a list", id="no list"),
        pytest.param(without("output_length"), ":1: field 'output_length' is miss", id="missing"),
        pytest.param(without("hash_ids"), ":1: field 'hash_ids' is missing", id="no ids"),
        pytest.param(row() + b"[1]\n", ":2: a row must be a JSON object", id="a list as row"),
        pytest.param(row() + b"[" * 200_000, ":2: ", id="deep nesting"),
        pytest.param(b"", ": the file is empty", id="empty"),
        pytest.param(b" \n\n", ": the file is empty", id="blank"),
        pytest.param(bytes(range(256)) * 9, ": a binary file, not a trace", id="binary"),
        pytest.param(b"\x1f\x8b" + bytes(99), ": the gzip data are damaged", id="gzip"),
        pytest.param(row() + b'{"\xff": 1}\n', ":2: not UTF-8 text", id="not UTF-8"),
        pytest.param(b"a,b,c\n1,2,3\n", ": not a trace in a known format", id="csv"),
        pytest.param(
            b'{"format":"kvsim-trace","version":1,"block_size":4,"time_unit":"ms",'
            b'"partial":"never"}\n',
            ": there is no request in it",
            id="header only",
        ),
        pytest.param(
            row() + row(timestamp=1_700_000_000_000), ":2: a time 19675 days after", id="two clocks"
        ),
    ],
)
def test_a_trace_that_cannot_be_read(
    desk: Path, content: bytes, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "bad.jsonl").write_bytes(content)
    command = ["replay", "bad.jsonl", "--gpu-blocks", "9", "--out", "out"]
    assert complaint(desk, command, capsys).startswith(f"bad.jsonl{message}")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("--gpu-blocks 0", "gpu_blocks must be an integer of at least 1, not 0"),
        ("--gpu-blocks -5", "gpu_blocks must be an integer of at least 1, not -5"),
        ("--gpu-blocks 2.5", "argument --gpu-blocks: invalid int value: '2.5'"),
        ("--gpu-blocks many", "argument --gpu-blocks: invalid int value: 'many'"),
        ("--gpu-blocks 99999999999999999999", "gpu_blocks must be at most 2**53"),
        ("--gpu-blocks", "argument --gpu-blocks: expected one argument"),
        ("--gpu-blocks 1", "no request of good finished: all 3 were refused, since the smallest"),
        ("--gpu-blocks 9 --cpu-blocks -1", "cpu_blocks must be an integer of at least 0, not -1"),
        ("--gpu-blocks 9 --gpu-gib 1", "gpu_blocks and gpu_gib exclude each other"),
        ("--gpu-gib 0", "gpu_gib must hold a block at least"),
        ("--gpu-gib nan", "gpu_gib must be a number of GiB, at least 0, not nan"),
        ("--gpu-gib 1e999", "gpu_gib must be a number of GiB, at least 0, not inf"),
        ("--policy lruu", "unknown policy 'lruu'. Did you mean 'lru'?"),
        ("--policy=", "unknown policy ''."),
        ("--model llama3.1-8b", "unknown model 'llama3.1-8b'. Did you mean 'llama-3.1-8b'?"),
        ("--hardware h200", "unknown hardware 'h200'. Did you mean 'h200-8x'?"),
        ("--kv-dtype 5", "kv_dtype must be 4, 8 or 16 (bits) or one of bf16"),
        ("--format moncake", "unknown trace format 'moncake'. Did you mean 'mooncake'?"),
        ("--format mooncake", "good.jsonl:1: field 'timestamp' is missing"),
        ("--partial no", "unknown partial 'no'. Known: count, never."),
        (
            "--block-size 8",
            "good.jsonl: block_size must divide the 4 tokens that an id stands for, not 8",
        ),
        ("--limit 0", "limit must be an integer of at least 1, not 0"),
        ("--warmup 1.5", "warmup must be a share of the requests from 0 to less than 1, not 1.5"),
        ("--warmup=-0.5", "warmup must be a share of the requests from 0 to less than 1, not -0.5"),
        ("--seed -1", "seed must be an integer of at least 0, not -1"),
        ("--token-budget 8 --max-running 9", "token_budget (8) must be at least max_running (9)"),
        ("--fail-rate 1.5", "fail_rate must be between 0 and 1, not 1.5"),
        ("--fail-rate .6 --hang-rate .6", "fail_rate, delay_rate and hang_rate must add up to"),
        (
            "--fail-rate 1",
            "no request of good finished: 0 refused, 0 cancelled by their clients, 3",
        ),
        ("--swap-in never", "unknown swap_in 'never'. Known: overlap, wait."),
        ("--gpublocks 9", "unknown option '--gpublocks'. Did you mean --gpu-blocks?"),
        ("--gpu 9", "unknown option '--gpu'."),
        ("more.jsonl", "unknown argument 'more.jsonl'."),
        ("--config none.toml", "none.toml: no such file or directory"),
        ("--config good.jsonl", "good.jsonl:1: not valid TOML"),
        ("--config .", "not the name of a file"),
        ("--out good.jsonl", "good.jsonl: cannot save there: it is a file; name a folder"),
        ("--out good.jsonl/x", "good.jsonl/x: cannot save there: "),
        (f"--out {'x' * 300}", "cannot save there: File name too long"),
    ],
)
def test_options_that_make_no_sense(
    desk: Path, options: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    line = complaint(desk, ["replay", "good.jsonl", *options.split()], capsys)
    assert message in line


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["reply"], "invalid choice: 'reply'"),
        (["replay"], "the following arguments are required: TRACE"),
        (["replay", "none.jsonl"], "none.jsonl: no such file or directory"),
        (["replay", "."], "not the name of a file"),
        (["replay", "folder"], "folder: a directory; name a file in it"),
        (["replay", ""], "not the name of a file"),
        (["replay", "a\0b"], "not the name of a file"),
        (["replay", "sample:chatt"], "unknown sample trace 'chatt'. Did you mean 'chat'?"),
        (["replay", "sample:chat", "--partial", "count"], "partial of trace chat is never, not"),
    ],
)
def test_commands_that_name_nothing(
    desk: Path, command: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "folder").mkdir()
    assert message in complaint(desk, command, capsys)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("gpu_blocks = ", "run.toml:1: not valid TOML"),
        ("seed = 1\ngpu_bloks = 3", "run.toml:2: unknown setting 'gpu_bloks'. Did you mean 'gpu_b"),
        ('gpu_blocks = "many"', "run.toml:1: gpu_blocks must be an integer of at least 1"),
        ('policy = "lru"\nhardware = "x"', "run.toml:2: unknown hardware 'x'."),
        ('policy = "lruu"', "unknown policy 'lruu'. Did you mean 'lru'?"),
    ],
)
def test_a_run_file_with_a_mistake(
    desk: Path, text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "run.toml").write_text(text)
    line = complaint(desk, ["replay", "good.jsonl", "--config", "run.toml"], capsys)
    assert line.startswith(message)


@pytest.fixture
def unprivileged() -> Iterator[Callable[[Path], None]]:
    """Give a function that takes all permission for a path away; root becomes somebody else."""
    was_root = os.geteuid() == 0
    locked: list[Path] = []

    def lock(path: Path) -> None:
        locked.append(path)
        path.chmod(0)
        if was_root:
            try:
                os.seteuid(65534)
            except OSError:
                pytest.skip("the tests run as root and may not become anybody else")

    yield lock
    if was_root:
        os.seteuid(0)
    for path in locked:
        path.chmod(0o755)


def test_a_file_without_permission(
    desk: Path, unprivileged: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    main(["replay", "good.jsonl", "--gpu-blocks", "9"])  # imports what it needs, as ourselves
    capsys.readouterr()
    unprivileged(desk / "good.jsonl")
    assert main(["replay", "good.jsonl", "--gpu-blocks", "9"]) == 2
    assert capsys.readouterr().err == "kvsim: good.jsonl: cannot be read: no permission\n"


def test_a_folder_without_permission(
    desk: Path, unprivileged: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    (desk / "locked").mkdir()
    main(["replay", "good.jsonl", "--gpu-blocks", "9"])
    capsys.readouterr()
    unprivileged(desk / "locked")
    assert main(["replay", "good.jsonl", "--gpu-blocks", "9", "--out", "locked/out"]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err == "kvsim: locked/out: cannot save there: Permission denied\n"


class OneTier:
    """A policy object that belongs to one tier."""

    def choose_victims(self) -> None: ...


def test_a_policy_object_for_two_tiers(desk: Path) -> None:
    with pytest.raises(UserError, match="policy must be a class or a name when there are two") as e:
        kvsim.replay(desk / "good.jsonl", policy=OneTier(), gpu_blocks=9, cpu_blocks=9)  # type: ignore[arg-type]
    assert "\n" not in str(e.value)


def test_something_that_is_no_policy(desk: Path) -> None:
    with pytest.raises(UserError, match="policy int has neither choose_victims"):
        kvsim.replay(desk / "good.jsonl", policy=5, gpu_blocks=9)  # type: ignore[arg-type]

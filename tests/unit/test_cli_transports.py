"""`kvsim check-transport` and `kvsim bench-transport`: what is printed, and what is refused."""

from __future__ import annotations

import json

import pytest

from kvsim.backends.transports.bench import BenchConfig
from kvsim.cli import main
from kvsim.errors import ConfigError


def test_a_bench_is_one_json_value(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench-transport ipc --blocks 4 --block-kib 4,16 --repeats 1 --json"
    assert main(words.split()) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["block_bytes"] for row in found["rows"]] == [4096, 16384]
    for row in found["rows"]:
        assert row["transport"] == "ipc"
        assert 0 < row["p50_us"] <= row["p99_us"]
        assert min(row["bytes_per_s"], row["contiguous_bytes_per_s"], row["ratio"]) > 0
    assert found["not_measured"] == {}


def test_a_bench_is_a_table_for_people(capsys: pytest.CaptureFixture[str]) -> None:
    words = "bench-transport ipc --blocks 2 --block-kib 4 --repeats 1"
    assert main(words.split()) == 0
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line.split() for line in lines if line.strip().startswith("ipc")]
    assert row[:2] == ["ipc", "4"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("bench-transport ipx", "unknown transport 'ipx'. Did you mean 'ipc'?"),
        ("bench-transport ipc --block-kib 4k", "--block-kib must be lengths in KiB with commas"),
        ("bench-transport ipc --block-kib 0", "a block has one byte or more, not (0,)"),
        ("bench-transport ipc --blocks 0", "num_blocks must be positive, not 0"),
        ("bench-transport ipc --repeats -1", "num_repeats must be positive, not -1"),
        ("check-transport ipx", "unknown transport 'ipx'. Did you mean 'ipc'?"),
        ("check-transport no.such:thing", "transport 'no.such:thing' cannot be imported"),
        ("check-transport ipc --patience 0", "--patience must be positive, not 0"),
    ],
)
def test_a_bad_input_is_one_line_and_exit_code_2(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words.split()) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.count("\n") == 1
    assert message in printed.err


def test_a_transport_that_breaks_its_contract_is_exit_code_1(
    capsys: pytest.CaptureFixture[str],
) -> None:
    name = "tests.unit.testing.broken_transports:TellsTheKey"
    assert main(["check-transport", name]) == 1
    printed = capsys.readouterr().err.splitlines()
    assert printed == [
        f"{name} breaks its contract: a description holds the key",
        "  contract: At most `MAX_DESCRIPTION_BYTES`, for the control plane. It holds no secret.",
    ]


def test_a_bench_that_would_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"are 8\.0 GiB: ask for at most 4 GiB"):
        BenchConfig(block_bytes=(1 << 25,), num_blocks=256)

"""`kvsim.replay(..., record=..., verify=...)`: the caller's side of recordings."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.errors import ConfigError
from kvsim.recording import open_recording, rerun
from kvsim.testing import PerBlockLRU
from tests.unit.stories import back_from_below

if TYPE_CHECKING:
    from pathlib import Path


def test_a_run_that_is_recorded_and_verified_is_decided_alike(tmp_path: Path) -> None:
    file = tmp_path / "run.turns"
    result = kvsim.replay("sample:chat", gpu_blocks=800, limit=50, record=file, verify=True)
    again = rerun(file)
    assert result.recording == {"turns": again.turns, "identical": True}
    assert again.identical
    assert again.turns > 50  # a request takes a turn at least
    assert result.faults == ()


def test_without_verify_nobody_has_looked(tmp_path: Path) -> None:
    result = kvsim.replay("sample:chat", gpu_blocks=800, limit=5, record=tmp_path / "run.turns")
    assert result.recording is not None
    assert result.recording["identical"] is None
    assert result.faults == ()


def test_recording_changes_no_figure(tmp_path: Path) -> None:
    config = kvsim.ReplayConfig(gpu_blocks=800, cpu_blocks=800, limit=60)
    plain = kvsim.replay("sample:chat", config=config)
    file = tmp_path / "run.turns"
    taped = kvsim.replay("sample:chat", config=config, record=file, events=True)
    assert plain.requests.equals(taped.requests)
    assert plain.transfers.equals(taped.transfers)
    with open_recording(file) as recording:
        events = [event for turn in recording for event in turn.events]
    assert events == taped.events


def test_a_policy_of_ones_own_is_verified_by_its_class(tmp_path: Path) -> None:
    result = kvsim.replay(
        "sample:chat",
        policy=PerBlockLRU,
        gpu_blocks=800,
        limit=50,
        record=tmp_path / "run.turns",
        verify=True,
    )
    assert result.recording is not None
    assert result.recording["identical"]


def test_real_tensors_are_decided_alike_without_them(tmp_path: Path) -> None:
    pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")
    result = kvsim.replay(
        back_from_below(),
        gpu_blocks=3,
        cpu_blocks=6,
        swap_batch_blocks=1,
        low_watermark_blocks=0,
        backend="paddle",
        ranks=2,
        record=tmp_path / "run.turns",
        verify=True,
    )
    assert result.tensors is not None
    assert result.tensors["wrong_bytes"] == 0
    assert result.tensors["blocks_swapped"] > 0
    assert result.recording is not None
    assert result.recording["identical"]
    assert result.clock == "wall"


def test_what_cannot_be_recorded_or_verified_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="verify needs a recording: name a file with record"):
        kvsim.replay("sample:chat", gpu_blocks=800, limit=5, verify=True)
    with pytest.raises(ConfigError, match="an instant replay has no turns"):
        kvsim.replay("sample:chat", gpu_blocks=800, instant=True, record=tmp_path / "x")
    used = OneTier()
    with pytest.raises(ConfigError, match="give a name or a class, not an object"):
        kvsim.replay(
            "sample:chat",
            policy=used,
            gpu_blocks=800,
            limit=5,
            record=tmp_path / "x",
            verify=True,
        )
    assert not (tmp_path / "x").exists()


class OneTier(PerBlockLRU):
    """A policy object that is made without a context."""

    def __init__(self) -> None:
        super().__init__(None)  # type: ignore[arg-type]  # it does not look at it

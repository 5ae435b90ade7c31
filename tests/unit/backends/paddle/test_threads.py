"""Ranks as threads: whatever happens, none of them is left."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import kvsim
from kvsim.backends.paddle import open_backend
from kvsim.backends.paddle.copier import HostCopier
from kvsim.core.ops import Member, Outcome
from kvsim.errors import ConfigError, UnknownNameError
from tests.unit.backends.paddle.liar import Liar
from tests.unit.backends.paddle.small_runs import serve, setup, transfer
from tests.unit.backends.paddle.stage import forward

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.backends.paddle.copier import Copier, Copy, Rows
    from kvsim.backends.region import Region
    from kvsim.backends.setup import BackendSetup, OpenBackend

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")


def ranks_alive() -> list[str]:
    """Return the names of the threads of ranks."""
    return [each.name for each in threading.enumerate() if each.name.startswith("kvsim rank")]


@contextmanager
def opened(
    what: BackendSetup, new_copier: Callable[[str], Copier] | None = None
) -> Iterator[OpenBackend]:
    """Open a backend, and see that close leaves no thread."""
    assert ranks_alive() == []
    made = open_backend(what) if new_copier is None else open_backend(what, new_copier=new_copier)
    try:
        assert len(ranks_alive()) == what.num_ranks
        yield made
    finally:
        made.backend.close()
        assert ranks_alive() == []


def test_no_thread_is_left_after_a_run_nor_with_ops_under_way() -> None:
    with opened(setup(step_ns=10**12)) as made:
        made.backend.submit(forward(0, num_steps=4, joined=(Member(0, 0, 4, (1, 2)),)))
        made.backend.submit(transfer(1, (0, 3), (4, 5)))
        answers = made.backend.wait(None)
        assert [(each.op_id, getattr(each, "outcome", None)) for each in answers] == [
            (1, Outcome.DONE)
        ]


class Broken(HostCopier):
    """A copier with a bug."""

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> Copy:
        """Fail in a way that nobody has thought of."""
        raise ZeroDivisionError("a bug")


def test_no_thread_is_left_after_a_rank_has_crashed_and_the_crash_is_told() -> None:
    copiers = iter((HostCopier(), Broken()))
    with opened(setup(), lambda _: next(copiers)) as made:
        made.backend.submit(transfer(0, (0,), (0,)))
        with pytest.raises(ZeroDivisionError, match="a bug") as caught:
            made.backend.wait(None)
        assert caught.value.__notes__ == ["rank 1 stopped working"]
        with pytest.raises(ZeroDivisionError, match="a bug"):
            made.backend.wait(None)


def test_an_interrupt_while_the_engine_waits_leaves_no_thread() -> None:
    """As Ctrl-C does: the signal comes in the wait for a step of a quarter of an hour."""
    before = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with opened(setup(step_ns=10**12)) as made:
            made.backend.submit(forward(0, joined=(Member(0, 0, 4, (1, 2)),)))
            signal.setitimer(signal.ITIMER_REAL, 0.05)
            with pytest.raises(KeyboardInterrupt):
                made.backend.wait(None)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    assert ranks_alive() == []


def test_an_interrupted_replay_leaves_no_thread() -> None:
    def interrupt(num_ended: int, num_requests: int) -> None:
        if num_ended > 5:
            signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        kvsim.replay(
            "sample:chat",
            gpu_blocks=1000,
            cpu_blocks=3000,
            limit=40,
            backend="paddle",
            ranks=2,
            forward="none",
            time_scale=10_000,
            progress=interrupt,
        )
    assert ranks_alive() == []


@pytest.mark.parametrize("num_told", [0, 1, 2, 3, 6])
def test_a_copier_that_leaves_one_layer_out_once_is_found_out(num_told: int) -> None:
    liar = Liar(num_told)
    copiers: Iterator[Copier] = iter((HostCopier(), liar))
    # Six prompts of two blocks in turn, on a GPU with room for two requests.
    what = setup(tier_blocks=(6, 12))
    with opened(what, lambda _: next(copiers)) as made:
        serve(what, made)
    assert made.tensors is not None
    assert liar.num_lies == 1
    assert made.tensors()["wrong_bytes"] > 0
    (note,) = made.notes()
    assert "on rank 1, in layer" in note


def test_the_same_without_a_lie_has_no_wrong_byte() -> None:
    what = setup(tier_blocks=(6, 12))
    with opened(what) as made:
        scheduler = serve(what, made)
    assert made.tensors is not None
    assert made.tensors()["wrong_bytes"] == 0
    assert made.tensors()["blocks_checked"] > 0
    assert made.tensors()["blocks_swapped"] > 0
    assert list(made.notes()) == []
    assert all(each.num_made == 3 for each in scheduler.ended)


def test_a_tier_without_blocks_is_no_place() -> None:
    with (
        opened(setup(tier_blocks=(8, 0))) as made,
        pytest.raises(ConfigError, match="there is no pool"),
    ):
        made.backend.submit(transfer(0, (0,), (0,)))


def test_what_cannot_be_made_is_refused_before_a_thread_starts() -> None:
    refused: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"layout": "flat"}, UnknownNameError, "block-major, layer-major"),
        ({"kv_dtype": "fp4"}, ConfigError, "no type for kv_dtype 'fp4': take one of bf16, fp16"),
        ({"shape": "model"}, ConfigError, "shape 'model' is that of a model, and none was given"),
        ({"extra_layers": -1}, ConfigError, "extra_layers must be at least 0, not -1"),
        ({"expand_ratio": 0.9}, ConfigError, "expand_ratio must be from 1 .* to 64, not 0.9"),
        ({"tier_blocks": (2**40, 8)}, ConfigError, "GiB of host memory"),
        ({"shape": "huge"}, UnknownNameError, "tiny"),
        ({"device": "tpu"}, ConfigError, "device must be 'cpu' or 'gpu:N'"),
    ]
    for changes, error, message in refused:
        with pytest.raises(error, match=message):
            open_backend(replace(setup(), **changes))  # type: ignore[arg-type]  # of its fields
    assert ranks_alive() == []

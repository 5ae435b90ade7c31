"""Attention over a block table: against the same by hand, and it sees whatever is wrong."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

import kvsim
from kvsim.backends.paddle.attention import Attention
from kvsim.backends.paddle.content import ContentSeeds, layer_patterns
from kvsim.backends.paddle.copier import HostCopier, host_words
from kvsim.backends.paddle.layout import Layout
from kvsim.backends.paddle.memory import RankMemory, Tally
from kvsim.backends.paddle.orders import Attends
from kvsim.backends.paddle.plans import ForwardPlanner
from kvsim.backends.paddle.pool import KVPool
from kvsim.backends.paddle.shape import find_shape
from kvsim.core.ops import Member, Slice
from kvsim.testing import Prompt, make_request
from tests.unit.backends.paddle.bits import GPU, SHAPE, blocks, forward_order, shape_of
from tests.unit.backends.paddle.stage import forward

if TYPE_CHECKING:
    from kvsim.backends.paddle.shape import KVShape

pytest.importorskip("paddle", reason="the tensor backend needs PaddlePaddle")

SHAPES = {
    "gqa": SHAPE,
    "second rank": shape_of(1),
    "mla": find_shape("tiny-mla"),
    "8 bits": replace(SHAPE, dtype="uint8", head_dim=8),
    "draft": replace(SHAPE, num_extra_layers=1, expand_ratio=1.5),
}
TABLES = Attends(*(np.array(x, np.int64) for x in (
    [5, 0, 3, 2], [11, 12, 13, 14], [4, 4, 1, 3], [0, 3, 4],
)))  # fmt: skip


def made(shape: KVShape, layout: Layout) -> tuple[Attention, RankMemory, KVPool]:
    """Return an attention over a pool whose blocks 5, 0, 3, 2 are written."""
    pool = KVPool(shape, 6, layout=layout)
    attention = Attention(pool)
    memory = RankMemory(
        rank=0,
        shape=shape,
        gpu=GPU,
        pools={GPU: pool},
        copier=HostCopier(),
        layout=layout,
        attention=attention,
    )
    writes = blocks(*zip(TABLES.block_ids.tolist(), TABLES.seeds.tolist(), strict=True))
    for layer in range(shape.num_all_layers):
        memory.compute_layer(forward_order(0, writes=writes), Tally(), layer)
    return attention, memory, pool


def values(words: np.ndarray, shape: KVShape) -> np.ndarray:
    """Return words as values, in double precision."""
    if shape.dtype == "uint8":
        return (words.view(np.uint8).astype(np.float64) - 127.5) / 127.5
    return words.view(np.int16).astype(np.float64) / 32768


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_the_result_is_that_of_the_formula_in_double_precision(
    shape: KVShape, layout: Layout
) -> None:
    attention, _, _ = made(shape, layout)
    seeds, filled = TABLES.seeds[:3], TABLES.filled[:3]
    for layer, pattern in enumerate(layer_patterns(shape)):
        found = attention.attend(
            attention._gathered(TABLES.block_ids[:3], layer),  # noqa: SLF001
            seeds,
            filled,
            layer,
        )
        for head in range(shape.num_kv_heads):
            # The tokens of the table, one after another: 4 of each block, but 1 of the last.
            rows = [
                [
                    values(np.ascontiguousarray(pattern[plane, slot]) ^ seed, shape)
                    for seed, num in zip(seeds, filled, strict=True)
                    for slot in range(num)
                ]
                for plane in (head, (shape.num_parts - 1) * shape.num_kv_heads + head)
            ]
            keys, vs = (np.array(each) for each in rows)
            scores = keys @ keys[-1] / np.sqrt(shape.head_dim)
            weights = np.exp(scores - scores.max())
            expected = weights / weights.sum() @ vs
            assert np.abs(found[head] - expected).max() < 1e-5


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_what_the_cache_gives_is_bit_for_bit_what_the_keys_give(
    shape: KVShape, layout: Layout
) -> None:
    attention, _, _ = made(shape, layout)
    for layer in range(shape.num_all_layers):
        assert attention.count_wrong(TABLES, layer) == 0


@pytest.mark.parametrize("layout", Layout)
def test_two_blocks_that_changed_places_or_a_layer_are_seen(layout: Layout) -> None:
    attention, memory, _ = made(SHAPE, layout)
    swapped = TABLES._replace(block_ids=TABLES.block_ids[[1, 0, 2, 3]])
    tally = Tally()
    memory.check_layer(forward_order(7, attends=swapped), tally, 1)
    assert tally.num_wrong_bytes > 0
    assert tally.first_wrong.startswith("op 7 attended to wrong bytes on rank 0, in layer 1: ")
    assert attention.count_wrong(TABLES._replace(seeds=TABLES.seeds + 1), 0) > 0


def test_a_slot_that_holds_no_token_is_not_attended_to() -> None:
    attention, _, pool = made(SHAPE, Layout.BLOCK_MAJOR)
    words = host_words(pool.region, 8).reshape(6, 2, 4, 4)
    words[3, 0, :, 1:] ^= 0x7F7F  # block 3 of the first table has one token
    assert attention.count_wrong(TABLES, 0) == 0
    words[3, 0, 1, 0] ^= 0x7F7F  # K of its head 1
    assert attention.count_wrong(TABLES, 0) > 0


def test_an_order_names_the_tables_up_to_the_tokens_there_are() -> None:
    requests = [
        make_request(i, Prompt((i, i), 3), block_size=4, num_output_tokens=9) for i in range(2)
    ]
    planner = ForwardPlanner(
        requests,
        ContentSeeds(requests),
        block_size=4,
        slots_per_block=4,
        step_ends=lambda op: (0,) * op.num_steps,
        has_attention=True,
    )
    # Prompts of 7 tokens. Request 0 computes tokens 2 to 4 (5 in all), request 1 begins to decode.
    order = planner.plan(
        forward(
            0,
            prefill=(Slice(0, 0, 2, 3, (6, 7), writes=True),),
            joined=(Member(1, 0, 7, (8, 9, 1)),),
        ),
        after=(),
        faults=(),
    )
    assert order.attends is not None
    assert order.attends.block_ids.tolist() == [6, 7, 8, 9]
    assert order.attends.filled.tolist() == [4, 1, 4, 3]
    assert order.attends.starts.tolist() == [0, 2, 4]
    assert order.attends.seeds.tolist() == [
        *ContentSeeds(requests).of_blocks(0, 2).tolist(),
        *ContentSeeds(requests).of_blocks(1, 2).tolist(),
    ]


def test_no_table_is_named_without_attention() -> None:
    assert forward_order(0).attends is None


@pytest.mark.parametrize("settings", [{}, {"shape": "tiny-mla", "layout": "layer-major"}])
def test_a_run_that_attends_finds_every_result_right(settings: dict[str, str]) -> None:
    result = kvsim.replay(
        "sample:chat",
        gpu_blocks=700,
        cpu_blocks=2000,
        limit=6,
        backend="paddle",
        ranks=2,
        forward="attention",
        time_scale=100_000,
        **settings,  # type: ignore[arg-type]
    )
    assert result.tensors is not None
    assert result.tensors["wrong_bytes"] == 0

"""Heads go from one split over ranks to another, each once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.core.sharding import KVLayout, ShardSlice, num_shared_layers, shard
from kvsim.errors import ConfigError

SIZES = st.sampled_from([1, 2, 4, 8])


def heads(num_ranks: int, num_kv_heads: int, *, extra: int = 0) -> KVLayout:
    return KVLayout(
        num_ranks=num_ranks, num_kv_heads=num_kv_heads, num_layers=2, num_extra_layers=extra
    )


def latent(num_ranks: int) -> KVLayout:
    return KVLayout(num_ranks=num_ranks, num_kv_heads=1, num_layers=2, is_latent=True)


def test_equal_splits_send_rank_to_rank() -> None:
    assert shard(heads(2, 8), heads(2, 8)) == (
        ShardSlice(0, 0, 0, 0, 4),
        ShardSlice(1, 1, 0, 0, 4),
    )


def test_four_ranks_merge_into_one() -> None:
    # Rank r of the source has head r alone; the target has heads 0 to 3.
    assert shard(heads(4, 4), heads(1, 4)) == tuple(ShardSlice(r, 0, 0, r, 1) for r in range(4))


def test_four_ranks_merge_into_two() -> None:
    # 8 heads: source ranks have 01 23 45 67, target ranks 0123 4567.
    assert shard(heads(4, 8), heads(2, 8)) == (
        ShardSlice(0, 0, 0, 0, 2),
        ShardSlice(1, 0, 0, 2, 2),
        ShardSlice(2, 1, 0, 0, 2),
        ShardSlice(3, 1, 0, 2, 2),
    )


def test_one_rank_is_split_over_two() -> None:
    assert shard(heads(1, 4), heads(2, 4)) == (
        ShardSlice(0, 0, 0, 0, 2),
        ShardSlice(0, 1, 2, 0, 2),
    )


def test_a_replicated_head_is_sent_once_to_each_rank_that_holds_it() -> None:
    # 2 heads on 4 ranks: 0 0 1 1. Targets 0, 1 want head 0, targets 2, 3 head 1.
    assert shard(heads(2, 2), heads(4, 2)) == (
        ShardSlice(0, 0, 0, 0, 1),
        ShardSlice(0, 1, 0, 0, 1),
        ShardSlice(1, 2, 0, 0, 1),
        ShardSlice(1, 3, 0, 0, 1),
    )


def test_of_two_ranks_with_the_same_head_one_sends() -> None:
    # Source ranks 0 and 1 both have head 0; ranks 1 and 3 have nothing to send.
    assert shard(heads(4, 2), heads(1, 2)) == (
        ShardSlice(0, 0, 0, 0, 1),
        ShardSlice(2, 0, 0, 1, 1),
    )


def test_between_replicas_the_load_is_spread() -> None:
    assert shard(heads(4, 2), heads(4, 2)) == tuple(ShardSlice(r, r, 0, 0, 1) for r in range(4))


def test_a_latent_goes_whole_to_every_rank() -> None:
    assert shard(latent(2), latent(4)) == (
        ShardSlice(0, 0, 0, 0, 1),
        ShardSlice(0, 2, 0, 0, 1),
        ShardSlice(1, 1, 0, 0, 1),
        ShardSlice(1, 3, 0, 0, 1),
    )
    assert shard(latent(4), latent(1)) == (ShardSlice(0, 0, 0, 0, 1),)


@given(source_ranks=SIZES, target_ranks=SIZES, num_kv_heads=SIZES)
def test_each_rank_gets_each_of_its_heads_once_and_the_right_one(
    source_ranks: int, target_ranks: int, num_kv_heads: int
) -> None:
    source, target = heads(source_ranks, num_kv_heads), heads(target_ranks, num_kv_heads)
    got: Counter[tuple[int, int]] = Counter()
    for each in shard(source, target):
        for i in range(each.num_heads):
            assert each.source_head + i < source.heads_per_rank
            sent = source.first_head(each.source_rank) + each.source_head + i
            wanted = target.first_head(each.target_rank) + each.target_head + i
            assert sent == wanted
            got[each.target_rank, each.target_head + i] += 1
    every = {(r, h): 1 for r in range(target_ranks) for h in range(target.heads_per_rank)}
    assert got == every


@given(source_ranks=SIZES, target_ranks=SIZES, num_kv_heads=SIZES)
def test_as_many_ranks_send_as_can_have_something_to_send(
    source_ranks: int, target_ranks: int, num_kv_heads: int
) -> None:
    source, target = heads(source_ranks, num_kv_heads), heads(target_ranks, num_kv_heads)
    senders = {each.source_rank for each in shard(source, target)}
    num_wanted = target.num_ranks * target.heads_per_rank
    assert len(senders) == min(source_ranks, num_wanted)


def test_extra_layers_of_both_are_sent() -> None:
    assert num_shared_layers(heads(1, 1, extra=1), heads(1, 1, extra=1)) == 3
    # Decode does not speculate: it has no place for the layer.
    assert num_shared_layers(heads(1, 1, extra=1), heads(1, 1)) == 2


def test_extra_layers_that_nobody_computes_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"decode has 1 extra layers .* prefill computes 0"):
        shard(heads(1, 1), heads(1, 1, extra=1))


def test_two_models_are_refused() -> None:
    with pytest.raises(ConfigError, match="must serve one model"):
        shard(heads(1, 4), heads(1, 8))
    with pytest.raises(ConfigError, match="must serve one model"):
        shard(heads(1, 1), latent(1))


@pytest.mark.parametrize(
    ("ranks", "num_kv_heads", "says"),
    [
        (3, 8, "8 KV heads cannot be dealt out to 3 ranks"),
        (0, 8, "num_ranks must be an integer of at least 1, not 0"),
        (1, 0, "num_kv_heads must be an integer of at least 1, not 0"),
    ],
)
def test_a_split_that_does_not_come_out_even_is_refused(
    ranks: int, num_kv_heads: int, says: str
) -> None:
    with pytest.raises(ConfigError, match=says):
        heads(ranks, num_kv_heads)


def test_a_latent_has_no_heads() -> None:
    with pytest.raises(ConfigError, match="of a latent must be 1, not 8"):
        KVLayout(num_ranks=1, num_kv_heads=8, num_layers=1, is_latent=True)

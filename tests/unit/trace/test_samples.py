from __future__ import annotations

import pytest

from kvsim.errors import UnknownNameError
from kvsim.trace import SAMPLES, load_sample


def test_the_chat_sample_has_the_documented_numbers() -> None:
    trace = load_sample()
    assert (trace.name, trace.format, trace.block_size) == ("chat", "kvsim", 64)
    assert (trace.num_requests, trace.num_references, trace.num_unique_blocks) == (
        2_000,
        116_117,
        35_003,
    )
    assert trace.repairs == ()
    assert len({request.session_id for request in trace.requests}) == 768
    assert round(trace.requests[-1].arrived_at / 60e9, 1) == 10.6


@pytest.mark.parametrize("name", SAMPLES)
def test_every_sample_can_be_read(name: str) -> None:
    assert load_sample(name).num_requests


def test_an_unknown_sample_is_told_with_the_known_ones() -> None:
    with pytest.raises(UnknownNameError) as caught:
        load_sample("chats")
    assert str(caught.value) == "unknown sample trace 'chats'. Did you mean 'chat'? Known: chat."

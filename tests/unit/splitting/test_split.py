"""Split runs whose figures can be worked out, and what they leave."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import kvsim
from kvsim.core.ops import Completion, Forward, Gate, Member, Outcome, Place, Transfer
from kvsim.cost import KvKind, ModelShape, duration_ns, prefill_attention_tokens
from kvsim.errors import UserError
from kvsim.presets import find_model
from kvsim.replay_config import ReplayConfig
from kvsim.sizing import cost_model
from kvsim.splitting.watch import SplitWatch
from kvsim.topology import NetworkConfig
from kvsim.trace import Trace
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.splitting import SplitResult

SECOND_NS = 10**9


def prompts(*block_counts: int, block_size: int = 64, shared: int = 0) -> Trace:
    """Return prompts of whole blocks, a second apart, the first `shared` blocks all the same."""
    return Trace(
        requests=tuple(
            Request(
                request_id=i,
                arrived_at=i * SECOND_NS,
                block_keys=tuple(
                    f"shared {n}" if n < shared else f"{i}, {n}" for n in range(num_blocks)
                ),
                num_input_tokens=num_blocks * block_size,
                num_output_tokens=3,
            )
            for i, num_blocks in enumerate(block_counts)
        ),
        block_size=block_size,
        partial=PartialRule.COUNT,
        name="prompts",
        format="story",
    )


def network(*, gigabytes: float, latency_ns: int = 0) -> NetworkConfig:
    return NetworkConfig(
        name="test",
        bytes_per_second=int(gigabytes * 10**9),
        latency_ns=latency_ns,
        overhead_ns=0,
    )


def run(trace: Trace, **settings: object) -> SplitResult:
    known: dict[str, Any] = {"gpu_blocks": 2000, "cpu_blocks": 0, "tp": 1}
    return kvsim.split(trace, **(known | settings))


@pytest.mark.parametrize("gigabytes", [1, 20, 400])
def test_what_is_exposed_follows_from_the_times_of_a_layer(gigabytes: int) -> None:
    # One chunk of 1,024 tokens on one rank: L layers of compute time c and transfer time t expose
    # t if t <= c, else L t - (L - 1) c; and here in whole: max(L t - (L c - c), t).
    trace = prompts(16)
    result = run(trace, link=network(gigabytes=gigabytes))
    cost = cost_model(ReplayConfig(hardware=_one_gpu()), 64)
    compute = cost.forward_ns(1024, prefill_attention_tokens(0, 1024), 0, 0, 1)
    sent = duration_ns(cost.transfer_bytes(16), gigabytes * 10**9)
    last = duration_ns(-(-cost.transfer_bytes(16) // 32), gigabytes * 10**9)
    expected = max(sent - (compute - -(-compute // 32)), last)
    (exposed,) = result.requests["exposed_transfer_ms"]
    assert exposed * 1e6 == pytest.approx(expected, abs=40)
    (at_end,) = run(trace, link=network(gigabytes=gigabytes), send="at_end").requests[
        "exposed_transfer_ms"
    ]
    assert at_end * 1e6 == pytest.approx(sent, abs=2)


def _one_gpu() -> kvsim.cost.Hardware:
    from kvsim.presets import find_hardware

    return replace(find_hardware("h200-8x"), num_gpus=1)


def test_the_parts_add_up_to_the_time_to_first_token() -> None:
    result = run(prompts(40, 3, 200, 7), token_budget=1024, max_running=8, link=2)
    frame = result.requests
    parts = frame["queue_ms"] + frame["compute_ms"] + frame["exposed_transfer_ms"]
    assert parts.tolist() == pytest.approx(frame["ttft_ms"].tolist())
    means = result.ttft_parts_ms
    assert means is not None
    assert result.ttft_ms is not None
    assert sum(means.values()) == pytest.approx(result.ttft_ms["mean"])  # type: ignore[arg-type]


def test_every_block_that_decode_lacks_is_sent_once() -> None:
    # The second prompt shares 10 of its 16 blocks, which decode has by then: 6 are sent.
    result = run(prompts(16, 16, shared=10))
    assert result.requests["num_sent_blocks"].tolist() == [16, 6]
    assert result.requests["num_decode_hit_blocks"].tolist() == [0, 10]
    assert result.sends["num_blocks"].sum() == 22
    # 131,072 bytes of KV a token (32 layers, 8 heads of 128, K and V, bf16).
    assert result.bytes_sent == 22 * 64 * 131_072
    assert sum(link["bytes"] for link in result.links.values()) == 2 * result.bytes_sent


def test_a_prompt_in_chunks_is_sent_in_chunks() -> None:
    # 1,024 tokens in chunks of 256, which are 4 blocks each.
    result = run(prompts(16), token_budget=256)
    assert result.sends["num_blocks"].tolist() == [4, 4, 4, 4]
    assert result.pieces["num_tokens"].tolist() == [256] * 4
    one = run(prompts(16), token_budget=256, send="at_end")
    assert one.sends["num_blocks"].tolist() == [16]
    assert one.hidden_fraction == 0.0


def test_a_faster_network_is_never_slower() -> None:
    slow, fast = (run(prompts(30, 60), link=link) for link in (1, 100))
    assert slow.ttft_ms is not None
    assert fast.ttft_ms is not None
    assert fast.ttft_ms["mean"] < slow.ttft_ms["mean"]
    assert slow.is_network_bound is False
    assert slow.busiest_link is not None


@pytest.mark.parametrize(("tp", "copies"), [("4:2", 1), ("1:4", 1), ("4:16", 2)])
def test_heads_are_sent_once_to_each_rank_that_holds_them(tp: str, copies: int) -> None:
    # 8 heads: on 16 ranks each is on two of them.
    result = run(prompts(16), tp=tp)
    assert result.bytes_sent == copies * 16 * 64 * 131_072


def test_a_latent_is_sent_to_every_rank() -> None:
    shape = find_model("deepseek-v3")
    assert isinstance(shape, ModelShape)
    assert shape.kv_kind is KvKind.MLA
    result = run(prompts(16), tp="8:16", model="deepseek-v3")
    assert result.bytes_sent == 16 * 16 * 64 * 70_272


def test_a_request_of_one_token_stays_where_it_is_computed() -> None:
    trace = prompts(16)
    single = replace(trace, requests=(replace(trace.requests[0], num_output_tokens=1),))
    result = run(single)
    assert result.num_requests["finished"] == 1
    assert len(result.sends) == 0
    assert result.hidden_fraction is None
    assert result.requests["ttft_ms"].notna().all()


def test_sends_that_fail_are_tried_again_or_end_their_request() -> None:
    settings: dict[str, Any] = {"fail_rate": 0.3, "seed": 3, "decode": 2, "prefill": 2}
    trace = prompts(*range(5, 45))
    again = run(trace, **settings)
    assert again.num_requests["finished"] == 40
    assert again.outcome.failures
    assert again.outcome.num_early_starts == 0
    ended = run(trace, **settings, on_send_failure="fail")
    assert ended.num_requests["failed"] > 0
    assert sum(ended.num_requests.values()) == 40


def test_json_has_what_was_promised() -> None:
    result = run(prompts(16, 16), decode=2)
    read = json.loads(result.to_json())
    assert {
        "wrong_bytes",
        "early_starts",
        "requests",
        "ttft_parts_ms",
        "hidden_fraction",
        "bytes_sent",
        "links",
    } <= read.keys()
    assert read["early_starts"] == 0
    assert read["wrong_bytes"] is None  # there are no tensors in the simulator
    assert read["requests"] == {"cancelled": 0, "failed": 0, "finished": 2, "refused": 0}
    assert set(read["ttft_parts_ms"]) == {"queue", "compute", "exposed_transfer"}
    assert set(read["links"]) >= {"out of instance 0, card 0", "into instance 1, card 0"}


def test_without_sizes_blocks_are_swapped() -> None:
    # 5 % of 1,000 blocks are 50, twice the longest request with its output and reserve more.
    result = kvsim.split(prompts(*[20] * 50), tp=1)
    # 20 blocks of prompt, one of output, one in reserve.
    assert (result.config.gpu_blocks, result.config.cpu_blocks) == (50, 150)
    longer = kvsim.split(prompts(*[100] * 10), tp=1)
    assert longer.config.gpu_blocks == 2 * (100 + 1 + 1)


def test_a_saved_run_has_its_tables_and_plots(tmp_path: Path) -> None:
    run(prompts(16, 20)).save(tmp_path / "run")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [
        "parts.png",
        "pieces.parquet",
        "request.png",
        "requests.parquet",
        "run.json",
        "sends.parquet",
    ]


def test_a_request_that_is_not_there_cannot_be_drawn() -> None:
    result = run(prompts(16))
    with pytest.raises(UserError, match="there is no request 7 in this run"):
        result.plot_request(7)


def test_a_split_is_the_same_whatever_the_hash_seed() -> None:
    code = (
        "import kvsim; r = kvsim.split('sample:chat', limit=60, prefill=2, decode=2, tp='4:2',"
        " fail_rate=0.1, link=1); d = r.summary(); d.pop('provenance'); import json;"
        " print(json.dumps(d, sort_keys=True), r.requests.to_csv(), r.sends.to_csv())"
    )
    seen = {
        subprocess.run(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


PREFILL, DECODE = Place(instance=0, tier=0), Place(instance=1, tier=0)


def _send(op_id: int) -> Transfer:
    return Transfer(op_id, PREFILL, DECODE, (0,), (0,), ((5, 0),), (), Gate.LAYER)


def _decode(op_id: int) -> Forward:
    return Forward(op_id, 1, 1, (), (Member(5, 0, 64, (0,)),), (), (), 1, 64)


def _done(op_id: int, outcome: Outcome = Outcome.DONE) -> Completion:
    return Completion(op_id, outcome, 0, 1)


def test_decode_before_the_last_send_is_done_is_seen() -> None:
    watch = SplitWatch()
    watch.turn(0, [_send(1), _send(2)], [_done(1)])
    watch.turn(1, [_decode(3)], [_done(2)])
    assert watch.num_early_starts == 1


def test_decode_in_the_turn_of_a_send_or_after_a_failed_one_is_seen() -> None:
    watch = SplitWatch()
    watch.turn(0, [_send(1), _decode(2)], [])
    assert watch.num_early_starts == 1
    watch = SplitWatch()
    watch.turn(0, [_send(1)], [_done(1, Outcome.FAILED)])
    watch.turn(1, [_decode(2)], [])
    assert watch.num_early_starts == 1


def test_decode_after_the_last_send_is_no_fault() -> None:
    watch = SplitWatch()
    watch.turn(0, [_send(1), _send(2)], [_done(1), _done(2)])
    watch.turn(1, [_decode(3)], [])
    assert watch.num_early_starts == 0

"""Probes between the ops of a run: nobody sees them, and they touch nobody's blocks."""

from __future__ import annotations

from collections import defaultdict
from random import Random
from typing import TYPE_CHECKING

from kvsim.backends.setup import OpenBackend
from kvsim.backends.sim import SimBackend
from kvsim.calibration.pilot import StepLog, StepSample
from kvsim.calibration.probe import GPU, HOST, Prober, sizes
from kvsim.config import LinkConfig
from kvsim.core.ops import Completion, Forward, Outcome, Slice, Transfer
from kvsim.cost import LinearCost

if TYPE_CHECKING:
    from kvsim.core.ports import Backend

# A copy takes 5 ns and 1 ns a block; a step 100 ns.
LINK = LinkConfig(bytes_per_second=10**9, latency_ns=0, overhead_ns=5)
COST = LinearCost(step_ns=100)
COPY_NS = 3


def opened(*, same_way: bool = True) -> tuple[OpenBackend, Prober, Backend]:
    """Return a simulator, a prober for copies of up to 4 blocks, and the backend with both."""
    inner = OpenBackend(
        backend=SimBackend(COST, links=LINK),
        rank_block_bytes=1,
        copy_ns=lambda: defaultdict(lambda: COPY_NS),
    )
    prober = Prober(most_blocks=4, rng=Random(1), same_way=same_way)
    return inner, prober, prober.around(inner, (10, 20))


def step(op_id: int, num_tokens: int = 1) -> Forward:
    """Return a step that computes some tokens of one prompt."""
    piece = Slice(0, 0, 0, num_tokens, (0,))
    return Forward(op_id, 0, 1, (piece,), (), (), (), num_decodes=0, context_tokens=0)


def test_sizes_double() -> None:
    assert sizes(256) == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert sizes(5) == (1, 2, 4)


def copy(op_id: int) -> Transfer:
    """Return a copy of one block to the host."""
    return Transfer(op_id, GPU, HOST, (0,), (0,))


def test_the_engine_sees_its_own_answers_and_no_others() -> None:
    _, prober, backend = opened()
    seen: list[int] = []
    for turn in range(20):
        backend.now()
        backend.submit(copy(2 * turn))
        backend.submit(step(2 * turn + 1))
        while len(seen) < 2 * turn + 2:
            seen += [answer.op_id for answer in backend.wait(None)]
    assert sorted(seen) == list(range(40))
    while backend.wait(None):
        pass
    assert len(prober.samples) == 20  # one in each turn with a copy
    assert len(prober.turns_ns) > 20


def test_a_turn_without_a_copy_gets_no_probe() -> None:
    _, prober, backend = opened()
    for op_id in range(10):
        backend.now()
        backend.submit(step(op_id))
        backend.wait(None)
    assert prober.samples == []


def test_a_probe_comes_before_or_behind_a_copy_and_goes_its_way() -> None:
    _, prober, backend = opened()
    backend.now()
    for op_id in range(12):
        up = op_id % 3 == 0
        backend.submit(Transfer(op_id, HOST, GPU, (0,), (0,)) if up else copy(op_id))
    assert [probe.source == HOST for probe in prober.probes] == [True, False, False] * 4
    _, prober, backend = opened(same_way=False)
    backend.now()
    for op_id in range(4):
        backend.submit(copy(op_id))
    assert [probe.source == HOST for probe in prober.probes] == [False, True] * 2
    assert {prober.comes_first() for _ in range(20)} == {True, False}


def test_nothing_is_waited_for_when_only_probes_are_under_way() -> None:
    _, prober, backend = opened()
    for op_id in range(10):
        backend.now()
        backend.submit(copy(op_id))
    while backend.wait(None):
        pass
    assert backend.wait(None) == ()
    assert prober.samples
    backend.close()


def test_probes_are_on_blocks_of_their_own() -> None:
    _, prober, _ = opened(same_way=False)
    probes = [prober.next_probe(copy(0), 0) for _ in range(50)]
    assert {probe.source == HOST for probe in probes} == {True, False}
    for probe in probes:
        up = probe.source == HOST
        gpu_ids, cpu_ids = (
            (probe.target_ids, probe.source_ids) if up else (probe.source_ids, probe.target_ids)
        )
        assert len(set(gpu_ids)) == len(set(cpu_ids)) == len(probe.source_ids) in {1, 2, 4}
        assert set(gpu_ids) <= set(range(10, 14))  # behind the 10 of the engine's
        assert set(cpu_ids) <= set(range(20, 24))


def test_a_sample_tells_the_copying_from_the_waiting() -> None:
    _, prober, backend = opened()
    backend.now()
    backend.submit(copy(0))
    while backend.wait(None):
        pass
    (sample,) = prober.samples
    # 5 ns, then it shares its link with the copy of one block, which goes the same way: 1 ns a
    # block, and 1 ns for the other while both last. 3 ns of it, it copied.
    assert sample.copy_ns == COPY_NS
    assert sample.wait_ns == 5 + sample.num_blocks + 1 - COPY_NS


def test_what_a_step_takes_beyond_its_timer_counts_from_its_cause() -> None:
    # A step takes 100 ns in the trace's time, 50 ns at twice the speed.
    log = StepLog(COST, time_scale=2, block_size=16)

    def ended(op_id: int, started_at: int, finished_at: int) -> Completion:
        return Completion(op_id, Outcome.DONE, started_at, finished_at, 1)

    log.turn(1_000, [step(0, 32)], [ended(0, 1_020, 1_080)])
    log.turn(1_090, [step(1, 48)], [])  # at once: from the end of the one before, 1080
    log.turn(1_095, [Transfer(7, HOST, HOST, (0,), (1,))], [ended(1, 1_100, 1_150)])
    log.turn(2_000, [], [])  # nothing to do
    log.turn(3_000, [step(2, 16)], [ended(2, 3_001, 3_049)])  # before its time: not below 1 ns
    assert log.samples == [StepSample(2, 30), StepSample(3, 20), StepSample(1, 1)]

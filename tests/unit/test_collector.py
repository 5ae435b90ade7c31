from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

import kvsim
from kvsim.backends.sim import SimBackend
from kvsim.collector import paused_collector, settle_collector
from kvsim.config import CacheConfig, SchedulerConfig
from kvsim.core.engine import run
from kvsim.core.manager import CacheManager
from kvsim.core.scheduler import Scheduler
from kvsim.cost import RooflineCost
from kvsim.policies import policy_factory
from kvsim.presets import find_hardware, find_model

ROOT = Path(__file__).parents[2]


def test_the_collector_is_as_it_was_afterwards() -> None:
    assert gc.isenabled()
    with paused_collector():
        assert not gc.isenabled()
        with paused_collector():
            pass
        assert not gc.isenabled()
    assert gc.isenabled()


def test_the_collector_is_on_again_after_an_error() -> None:
    with pytest.raises(KeyError), paused_collector():
        raise KeyError
    assert gc.isenabled()


def count_cycles() -> None:
    """Print how many objects in cycles a replay leaves; in a process where nobody else makes any.

    With swaps, and with everything it is made of still in use: a cycle would be its garbage.
    """
    trace = kvsim.sample()
    hardware = find_hardware("h200-8x")
    cost = RooflineCost(find_model("llama-3.1-8b"), hardware, block_size=trace.block_size)
    _, factory, _ = policy_factory("lru")
    manager = CacheManager(
        CacheConfig(block_size=trace.block_size, tier_blocks=(2000, 4000)), factory, rng=Random(0)
    )
    scheduler = Scheduler(manager, trace.requests[:500], SchedulerConfig())
    backend = SimBackend(cost, links=hardware.host_link, num_ranks=hardware.num_gpus)
    gc.collect()
    with paused_collector():
        run(scheduler, backend)
        print(gc.collect(), len(scheduler.ended))  # noqa: T201


def test_a_replay_makes_no_cycle() -> None:
    program = "from tests.unit.test_collector import count_cycles; count_cycles()"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["0", "500"]


def test_settling_leaves_the_collector_and_what_others_froze_alone() -> None:
    before = gc.get_freeze_count()
    assert gc.isenabled()
    made: list[list[int]] = [[] for _ in range(1000)]
    settle_collector()
    assert gc.get_freeze_count() == before
    assert gc.isenabled()
    assert not any(each is made for each in gc.get_objects(generation=0))
    gc.freeze()
    frozen = gc.get_freeze_count()
    settle_collector()
    assert gc.get_freeze_count() == frozen
    gc.unfreeze()

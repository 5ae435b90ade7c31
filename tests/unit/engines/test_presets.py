from __future__ import annotations

import re

import pytest

import kvsim
from kvsim.engines import ENGINES, Evicts, find_engine
from kvsim.errors import UnknownNameError
from kvsim.policies.lru import Stamp
from kvsim.replay_config import ReplayConfig
from kvsim.types import PartialRule
from tests.unit.stories import trace_of


def test_every_rule_names_a_project_its_version_and_a_function() -> None:
    for engine in ENGINES.values():
        assert set(engine.rules) == {"evicts", "tail", "keys", "unit", "last_token", "stamp"}
        for rule in engine.rules.values():
            project, version, place = re.split(r" (?=\d)|, ", rule.source, maxsplit=2)
            assert project.lower() == engine.name
            assert engine.version.startswith(version)
            assert re.search(r"\w+\.py|srt/managers", place), rule.source


def test_no_engine_gives_a_key_to_a_block_that_is_not_full() -> None:
    assert {engine.keys.value for engine in ENGINES.values()} == {PartialRule.NEVER}


@pytest.mark.parametrize("name", ENGINES)
def test_its_settings_are_settings_of_a_replay(name: str) -> None:
    config = ReplayConfig().with_settings(find_engine(name).settings())
    assert config.partial_rule is PartialRule.NEVER
    assert config.policy == ("lru-admit" if name in {"fastdeploy", "lmcache"} else "lru")


def test_what_no_setting_says_is_told() -> None:
    assert "it evicts by node, a replay by block" in find_engine("sglang").unset()
    assert not any("evicts by" in each for each in find_engine("vllm").unset())
    assert find_engine("sglang").evicts.value is Evicts.NODE


@pytest.mark.parametrize("name", ENGINES)
def test_its_policy_is_lru_by_its_own_stamp(name: str) -> None:
    # One after another, the stamp makes no difference: "ab" is found by the third request.
    trace = trace_of(("ab", 8), ("cd", 8), ("ab", 8))
    engine = find_engine(name)
    result = kvsim.replay(trace, policy=engine.policy, gpu_blocks=4, instant=True)
    assert result.hits["block"]["hits"] == 2
    assert result.config.policy == engine.policy
    assert engine.stamp.value in Stamp


def test_an_unknown_engine_is_compared_with_those_there_are() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown engine 'vlm'. Did you mean 'vllm'\?"):
        find_engine("vlm")

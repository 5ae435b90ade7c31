"""What users hold their policies to: it finds what is broken, and nothing else."""

from __future__ import annotations

import sys
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import ConfigError, PolicyError, UnknownNameError
from kvsim.policies import POLICIES
from kvsim.policies.fifo import FIFO
from kvsim.policies.lru import LRU, Stamp
from kvsim.testing import ConformanceError, Finding, PerBlockLRU, check_policy
from kvsim.testing.findings import CONTRACT
from tests.unit.testing.broken_policies import (
    BROKEN,
    ForgetsHits,
    SearchesAll,
)

if TYPE_CHECKING:
    from kvsim.policies.registry import PolicyMaker


@pytest.mark.parametrize(
    ("policy", "finding", "message"), BROKEN, ids=lambda each: getattr(each, "__name__", "")
)
def test_a_broken_policy_is_found_and_told_what_it_did(
    policy: PolicyMaker, finding: Finding, message: str
) -> None:
    with pytest.raises(ConformanceError, match=message) as raised:
        check_policy(policy)
    assert raised.value.finding is finding
    assert "\n" not in str(raised.value)
    assert str(raised.value).endswith(f"[{finding}; the contract: {CONTRACT[finding]}]")


def test_every_finding_is_shown_by_a_broken_policy() -> None:
    assert {finding for _, finding, _ in BROKEN} == set(Finding) == set(CONTRACT)


@pytest.mark.parametrize("policy", [*sorted(POLICIES), PerBlockLRU])
def test_a_policy_that_keeps_the_contract_passes(policy: str | type[PerBlockLRU]) -> None:
    report = check_policy(policy, num_traces=20)
    assert report.num_requests == 800
    assert report.num_victims > 500
    assert report.num_repeated == 10
    assert report.form == ("batch" if isinstance(policy, str) else "per-block")
    assert set(report.steps) >= {"on_insert", "on_hit", "on_evictable", "on_remove"}
    assert all(many <= 2 * few + 10 for few, many in report.steps.values())


def test_another_seed_gives_other_requests_that_right_policies_pass_too() -> None:
    reports = [check_policy("arc", num_traces=5, seed=seed) for seed in (0, 1)]
    assert reports[0].num_calls != reports[1].num_calls


def test_a_report_says_what_was_checked() -> None:
    report = check_policy(partial(LRU, stamp=Stamp.ADMIT), num_traces=2, num_requests=10)
    lines = report.lines()
    assert lines[0].startswith(f"{report.num_calls} calls in 2 traces (20 requests):")
    assert lines[1] == "2 traces again, with other hashes: the same victims"
    assert lines[2] == "hits change what it evicts"
    assert "no call costs more with more blocks" in lines[3]
    assert report.to_dict()["policy"] == "partial"


def test_a_policy_that_is_meant_to_ignore_hits_says_so() -> None:
    assert FIFO.ignores_hits
    report = check_policy(FIFO, num_traces=2)
    assert report.uses_hits is None
    assert "was not asked" in report.lines()[2]

    class Waived(ForgetsHits):
        ignores_hits = True

    assert check_policy(Waived, num_traces=2).uses_hits is None


def test_the_caller_can_waive_what_is_meant() -> None:
    report = check_policy(ForgetsHits, num_traces=2, waive=["ignores-hits"])
    assert report.uses_hits is None
    report = check_policy(SearchesAll, num_traces=2, waive=["cost"])
    assert report.steps == {}
    assert report.lines()[3] == "what a call costs was not asked"


def test_only_what_can_be_waived_can_be_waived() -> None:
    with pytest.raises(UnknownNameError, match=r"unknown finding to waive 'orphan'.*cost, ignores"):
        check_policy("lru", waive=["orphan"])


def test_one_object_is_no_policy_to_check() -> None:
    policy = PerBlockLRU(None)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="needs a class or a name, not one PerBlockLRU object"):
        check_policy(policy)


@pytest.mark.parametrize("numbers", [{"num_traces": 0}, {"num_requests": 0}])
def test_nothing_is_not_enough_to_check_with(numbers: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="must be at least 1, not 0"):
        check_policy("lru", **numbers)  # type: ignore[arg-type]


def test_a_class_that_takes_no_context_is_refused() -> None:
    class Bare(PerBlockLRU):
        def __init__(self) -> None:
            pass

    with pytest.raises(ConfigError, match=r"policy Bare cannot be made as Bare\(context\): too"):
        check_policy(Bare)  # type: ignore[arg-type]


def test_a_policy_without_a_way_to_choose_is_refused() -> None:
    class Silent:
        def __init__(self, context: object) -> None:
            pass

    with pytest.raises(ConfigError, match="has neither choose_victims"):
        check_policy(Silent)  # type: ignore[arg-type]


def test_an_error_of_the_policys_own_kind_is_passed_on() -> None:
    def refuses(context: object) -> PerBlockLRU:
        raise ConfigError("small_fraction must be between 0 and 1, not 7")

    with pytest.raises(ConfigError, match="small_fraction must be"):
        check_policy(refuses)


def test_a_policys_exception_is_the_cause_of_the_finding() -> None:
    broken = next(policy for policy, finding, _ in BROKEN if finding is Finding.RAISES)
    with pytest.raises(PolicyError) as raised:
        check_policy(broken)
    assert isinstance(raised.value.__cause__, KeyError)


def test_counting_leaves_the_interpreter_as_it_was() -> None:
    module = sys.modules[SearchesAll.__module__]
    names, trace, profile = set(vars(module)), sys.gettrace(), sys.getprofile()
    with pytest.raises(ConformanceError):
        check_policy(SearchesAll, num_traces=1)
    assert set(vars(module)) == names
    assert sys.gettrace() is trace
    assert sys.getprofile() is profile

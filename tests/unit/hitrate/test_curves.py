from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import pytest

from kvsim.analysis.metrics import DEFINITIONS
from kvsim.errors import ConfigError, PolicyError, UnknownNameError, UserError
from kvsim.hitrate import lru_curve, opt_curve, policy_league, replay, replay_curve, reuse
from kvsim.policies.lru import LRU
from kvsim.testing import PerBlockLRU
from kvsim.types import PartialRule
from tests.unit.policies.context import new_context
from tests.unit.stories import SECOND_NS, three_prompts, trace_of

if TYPE_CHECKING:
    from kvsim.analysis.metrics import HitFigure
    from kvsim.core.ports import Peel
    from kvsim.trace import Trace


def loop() -> Trace:
    """Return abc, de and abc again, all blocks full: 8 references, 3 of them known."""
    return trace_of(("abc", 12), ("de", 8), ("abc", 12))


def hits_by(figures: dict[str, HitFigure]) -> list[int]:
    """Return the hits by block, prefix_block, prefix_token and prefix_token_usable."""
    return [each["hits"] for each in figures.values()]


def test_a_block_is_hit_if_it_lies_within_the_capacity_of_the_stack() -> None:
    # When abc comes again the stack is d e a b c: a, b and c are at 3, 4 and 5.
    curve = lru_curve(loop(), [1, 2, 3, 4, 5, 6])
    assert [curve.at(c)["block"]["hits"] for c in curve.capacities] == [0, 0, 1, 2, 3, 3]
    assert curve.histogram is not None
    assert curve.histogram.references().tolist() == [0, 0, 0, 1, 1, 1]


def test_every_definition_is_counted_at_once() -> None:
    # With room for all, blocks 0 + 3 + 1 of 8; tokens 10 + 4 of 26; usable 8 + 4 (see the story).
    curve = lru_curve(three_prompts(), [10])
    assert list(curve.at(10)) == list(DEFINITIONS)
    assert hits_by(curve.at(10)) == [4, 4, 14, 12]
    assert [figure["total"] for figure in curve.at(10).values()] == [8, 8, 26, 26]
    # With 2 blocks abc hits a and b, 8 tokens, all of them usable; then ad hits a, 4 tokens.
    assert hits_by(curve.at(2)) == [3, 3, 12, 12]


def test_the_warm_up_is_replayed_and_not_counted() -> None:
    curve = lru_curve(three_prompts(), [10], warmup=0.5)  # 1 of 3 requests, rounded down
    assert hits_by(curve.at(10)) == [4, 4, 14, 12]
    assert curve.at(10)["block"]["total"] == 5
    assert curve.frame.attrs["warmup_requests"] == 1


def test_the_optimum_keeps_what_is_wanted_again() -> None:
    # With 3 blocks d and e must be cached when their request ends, so one of abc stays; if they
    # need not be, all three stay.
    assert opt_curve(loop(), [3]).at(3)["block"]["hits"] == 1
    assert opt_curve(loop(), [3], "bypass").at(3)["block"]["hits"] == 3


def test_a_request_that_is_too_long_keeps_its_first_blocks() -> None:
    # abcd in 2 blocks leaves ab. The core refuses it instead, and so hits nothing.
    trace = trace_of(("abcd", 16), ("abcd", 16))
    assert replay(trace, LRU, 2).runs == (0, 2)
    assert replay(trace, "lru", 2).runs == (0, 2)
    assert lru_curve(trace, [2]).at(2)["block"]["hits"] == 2
    assert opt_curve(trace, [2]).at(2)["block"]["hits"] == 2


def test_a_frame_says_what_its_figures_rest_on() -> None:
    frame = replay_curve(loop(), "fifo", [3, 5], warmup=0.4).frame
    assert list(frame.columns) == [
        "policy", "capacity_blocks", "definition", "hits", "total", "rate",
    ]  # fmt: skip
    assert len(frame) == 2 * len(DEFINITIONS)
    assert frame.attrs["in_flight"] == "no requests in flight"
    assert frame.attrs["definitions"] == DEFINITIONS
    facts = {name: frame.attrs[name] for name in ("trace", "policy", "partial", "warmup")}
    assert facts == {"trace": "story", "policy": "fifo", "partial": "count", "warmup": 0.4}


def test_a_curve_is_json_and_html() -> None:
    curve = lru_curve(loop(), [3])
    assert json.loads(json.dumps(curve.to_dict()))["points"] == curve.points()
    html = curve._repr_html_()
    assert '<td style="text-align:right">12.50%</td>' in html  # 1 of 8
    assert "no requests in flight" in html


def test_without_capacities_the_curve_is_listed_from_1_to_its_end() -> None:
    curve = lru_curve(loop())
    assert (curve.capacities[0], curve.capacities[-1]) == (1, 5)
    assert lru_curve(trace_of(("a", 4), ("b", 4))).capacities == (1,)  # nothing is ever hit


def test_capacities_may_come_from_numpy_and_in_any_order() -> None:
    curve = replay_curve(loop(), "fifo", np.array([5, 3]))
    assert curve.capacities == (5, 3)
    assert json.dumps(curve.points())


def test_a_capacity_that_was_not_replayed_is_not_guessed() -> None:
    with pytest.raises(ConfigError, match=r"capacity 4 of fifo is not known: 3, 5 are"):
        replay_curve(loop(), "fifo", [3, 5]).at(4)


@pytest.mark.parametrize("bad", [0, -1, 2.5, True, "3", 1 << 60])
def test_a_capacity_that_is_no_block_count_is_refused(bad: object) -> None:
    with pytest.raises(ConfigError, match=r"must be a whole number of blocks from 1 to"):
        lru_curve(loop(), [bad])  # type: ignore[list-item]
    with pytest.raises(ConfigError, match=r"must be a whole number of blocks from 1 to"):
        replay(loop(), "lru", bad)  # type: ignore[arg-type]


def test_other_bad_arguments_are_one_line_each() -> None:
    with pytest.raises(ConfigError, match="at least one block count"):
        lru_curve(loop(), [])
    with pytest.raises(ConfigError, match="must be a list of block counts, not 5"):
        opt_curve(loop(), 5)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="warmup must be a share"):
        lru_curve(loop(), warmup=1.0)
    with pytest.raises(UnknownNameError, match=r"unknown residency 'residnt'\. Did you mean"):
        opt_curve(loop(), [3], "residnt")  # type: ignore[arg-type]
    with pytest.raises(UnknownNameError, match="unknown policy"):
        replay(loop(), "lur", 3)
    with pytest.raises(UnknownNameError, match="unknown definition of the hit rate 'tokens'"):
        lru_curve(loop()).rates("tokens")


def test_a_trace_without_blocks_has_nothing_to_hit() -> None:
    short = replace(loop().requests[0], block_keys=(), num_input_tokens=3)
    trace = replace(loop(), requests=(short,), partial=PartialRule.NEVER)
    with pytest.raises(UserError, match="trace story has no full blocks: there is nothing to hit"):
        lru_curve(trace)
    with pytest.raises(UserError, match="trace story has no requests: there is nothing to hit"):
        lru_curve(replace(loop(), requests=()))


@pytest.mark.parametrize(
    "prompts",
    [
        ["ab", "xb"],  # b below x
        ["ab", "a", "x", "xb"],  # the same, where the paths meet again piece by piece
        ["aa"],  # a below itself
        ["abcd", "axcd"],  # a gap that a search by halves would jump over
        ["ab", "b"],  # b as a root
    ],
)
def test_keys_that_do_not_name_their_prefix_are_refused(prompts: list[str]) -> None:
    trace = trace_of(*((letters, 4 * len(letters)) for letters in prompts))
    last = len(prompts) - 1
    problem = rf"trace story: a block key of request {last} does not stand for its whole prefix"
    with pytest.raises(UserError, match=problem):
        lru_curve(trace)
    with pytest.raises(UserError, match=problem):
        replay(trace, LRU, 3)


def test_a_policy_object_serves_one_capacity() -> None:
    policy = PerBlockLRU(new_context())
    assert replay_curve(loop(), policy, [5]).at(5)["block"]["hits"] == 3
    with pytest.raises(ConfigError, match="must be a class or a name for more than one capacity"):
        replay_curve(loop(), PerBlockLRU(new_context()), [3, 5])


class Hoarder(LRU):
    """Returns fewer victims than there are."""

    def choose_victims(self, n: int, peel: Peel, now: int) -> list[int]:
        """Keep the last one."""
        return super().choose_victims(n - 1, peel, now)


def test_a_policy_that_frees_too_little_is_named() -> None:
    problem = r"Hoarder.choose_victims returned 1 victims and took 1 with peel, where 2 were asked"
    with pytest.raises(PolicyError, match=problem):
        replay(loop(), Hoarder, 3)


def test_a_league_is_ordered_as_asked_and_measured_by_the_optimum() -> None:
    # In 4 blocks LRU hits a and b, the optimum too: d and e need 2 of the 4.
    league = policy_league(loop(), ["lru", "fifo"], 4)
    assert list(league.hits) == ["lru", "fifo"]
    assert league.share_of_opt("lru") == 1.0
    assert league.frame["policy"].unique().tolist() == ["lru", "fifo", "opt"]
    assert json.dumps(league.to_dict())
    assert "100.0%" in league._repr_html_()
    with pytest.raises(ConfigError, match="two are 'lru'"):
        policy_league(loop(), ["lru", "lru"], 4)
    with pytest.raises(ConfigError, match="at least one policy"):
        policy_league(loop(), [], 4)


def test_reuse_is_told_in_blocks_and_in_time() -> None:
    # abc comes again 2 s later, its blocks at 3, 4 and 5 of the stack.
    found = reuse(loop())
    assert found.by_distance == {3: 1, 4: 1, 5: 1}
    assert found.by_time_ns == {2 * SECOND_NS: 3}
    assert found.num_first == 5
    assert found.quantiles()["distance_blocks"]["50%"] == 4  # 2 of 3 are within 4
    assert found.frame["references"].sum() == 6
    assert json.dumps(found.to_dict())
    assert "62.50%" in found._repr_html_()  # 5 of 8


def test_each_request_of_a_replay_has_its_row() -> None:
    found = replay(three_prompts(), "lru", 10, warmup=0.4)
    rows = found.requests
    assert rows["num_hit_blocks"].tolist() == [0, 3, 1]
    assert rows["num_hit_tokens"].tolist() == [0, 10, 4]
    assert rows["num_usable_hit_tokens"].tolist() == [0, 8, 4]
    assert rows["num_known_blocks"].tolist() == [0, 3, 1]
    assert rows["is_warmup"].tolist() == [True, False, False]
    assert found.frame["total"].tolist() == [5, 5, 16, 16]
    assert repr(found) == "<HitReplay lru on story, 10 blocks; prefix_token 87.50%>"  # 14 of 16
    assert found.to_dict()["hits"] == found.hits
    assert "87.50%" in found._repr_html_()

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given

from kvsim.errors import ConfigError
from kvsim.trace import load_model, write_model
from kvsim.trace.synthesis.model_file import encoded
from tests.unit.trace.synthesis.models import REPORT, models, small_model

if TYPE_CHECKING:
    from pathlib import Path

    from kvsim.trace.synthesis import SessionModel


@given(model=models())
def test_a_model_comes_back_from_its_file(
    tmp_path_factory: pytest.TempPathFactory, model: SessionModel
) -> None:
    file = tmp_path_factory.getbasetemp() / "round.toml"
    write_model(model, file)
    found = load_model(file)
    assert found == model
    assert found.report == model.report
    assert encoded(found) == encoded(model)


def test_the_file_says_what_it_is_for_and_how_good_it_is() -> None:
    text = encoded(small_model(report=REPORT))
    assert "# Do not rank eviction policies on it" in text
    assert "curve_error = 0.1\n" in text


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"kvsim-workload"', '"other"', ":6: format must be 'kvsim-workload'"),
        ("version = 1", "version = 2", ":7: version must be 1, not 2"),
        ("version = 1", "version = 1\nextra = 3", ":8: unknown key of a workload model 'extra'"),
        ("block_size = 16", "block_size = 0", ":12: block_size must be an integer of at least 1"),
        ("block_size = 16", 'block_size = "a"', ":12: block_size must be an integer"),
        ('"count"', '"all"', ":13: partial must be count or never, not 'all'"),
        ("first_blocks = [2.0]", "first_blocks = 2", ":15: first_blocks must be a list of numbers"),
        ("first_blocks = [2.0]", "first_blocks = []", ":15: first_blocks must have at least 1"),
        ("gap_ms", "gap", ":17: unknown key of .workload. 'gap'. Did you mean 'gap_ms'"),
        ("gap_ms = [10.0]\n", "", ":10: .workload. lacks gap_ms"),
        ("share = 1.0", "share = 1.5", ":22: share must be a number .* at most 1, not 1.5"),
        ("share = 1.0", "share = 1.0\nextends = 0", "extends must name one of the prefixes before"),
        ("[2.0, 2.0]", "[2.0, 1.0]", ":28: delay_requests must not fall"),
        ("[2.0, 2.0]", "[2.0, nan]", ":28: delay_requests .each. must be a number"),
        ("[2.0, 2.0]", "[2.0]", ":28: delay_requests must have at least 2 numbers, not 1"),
        ("new_blocks = [2.0]\n", "", ":25: new_blocks must have at least 1 numbers, not 0"),
        ("up_to_blocks = 9\ncontinuations = 0\n", "up_to_blocks = 8\ncontinuations = 0\n",
         "continued must have classes of rising up_to_blocks, the last of 9"),
        ("continuations = 0\n", "continuations = -1\n", ":35: continuations must be a number"),
        ("curve_error = 0.1\n", "curve_error = true\n", "curve_error must be a number"),
        ("capacities = [10, 100]", "capacities = [10]", "must have one number a capacity"),
        ("version = 1", "version = ", ":7: not valid TOML"),
    ],
)  # fmt: skip
def test_a_file_that_cannot_be_right_is_refused_with_its_line(
    tmp_path: Path, old: str, new: str, problem: str
) -> None:
    file = tmp_path / "m.toml"
    text = encoded(small_model(report=REPORT))
    assert text.count(old) >= 1
    file.write_text(text.replace(old, new, 1))
    with pytest.raises(ConfigError, match=problem) as caught:
        load_model(file)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("text", ["", "first = 3", '[workload]\nformat = "x"'])
def test_other_toml_is_no_model(tmp_path: Path, text: str) -> None:
    (tmp_path / "m.toml").write_text(text)
    with pytest.raises(ConfigError, match="format must be 'kvsim-workload'"):
        load_model(tmp_path / "m.toml")

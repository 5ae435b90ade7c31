"""Every notebook runs from top to bottom, and its committed copy shows what came out."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

from kvsim.trace.synthesis import Chat, synthesize
from tests.notebooks.regenerate import NOTEBOOKS, TRACE_VARIABLE, execute, main, read

if TYPE_CHECKING:
    from pathlib import Path

    from nbformat import NotebookNode

    from kvsim.trace import Trace

# The kernel talks to us over loopback TCP and says so; jupyter_client leaves its event loop open.
pytestmark = pytest.mark.filterwarnings("default")

every_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)

WALL_CLOCK = {"07_simulator_against_tensors"}
"""Notebooks that measure: every run has other numbers."""

WHEN = re.compile("in this call, (before the run: [^:]*|by copies beside those of the run)")
"""When the calibration was made: a fast run is too short for the better way."""

NUMBER = re.compile(r"(?<![\w.])\d[\d,_]*(?:\.\d+)?")


def texts(notebook: NotebookNode) -> list[str]:
    """Return what the cells put out as text; of a picture, that it is one."""
    found: list[str] = []
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.get("data", {})
            found.append(output.get("text") or data.get("text/html") or data["text/plain"])
    return found


def numbers(text: str) -> set[float]:
    """Return the numbers in a text, without their signs."""
    return {float(re.sub("[,_]", "", found)) for found in NUMBER.findall(text)}


def mooncake(trace: Trace, path: Path) -> Path:
    """Write a trace in Mooncake's format, its blocks as if they were of 512 tokens."""
    lines = [
        {
            "timestamp": request.arrived_at // 10**6,
            "input_length": 512 * len(request.block_keys),
            "output_length": request.num_output_tokens,
            "hash_ids": list(request.block_keys),
        }
        for request in trace.requests
        if request.block_keys
    ]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines), encoding="utf-8")
    return path


def test_there_are_notebooks_for_the_questions_that_a_newcomer_has() -> None:
    assert [path.stem for path in NOTEBOOKS] == [
        "01_first_replay",
        "02_how_big_a_cache",
        "03_which_policy",
        "04_write_your_own_policy",
        "05_know_your_trace",
        "06_tiers_and_retention",
        "07_simulator_against_tensors",
        "08_prefill_decode_split",
    ]


@every_notebook
def test_a_notebook_runs_and_gives_what_its_committed_copy_shows(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TRACE_VARIABLE, "not this one")  # of the reader, who runs the tests
    committed, notebook = read(path), read(path)
    is_measured = path.stem in WALL_CLOCK
    execute(notebook, folder=tmp_path, fast=is_measured)
    shown, before = texts(notebook), texts(committed)
    if is_measured:
        shown, before = (
            [NUMBER.sub("#", WHEN.sub("then", text)) for text in each] for each in (shown, before)
        )
    assert shown == before


@pytest.mark.thorough
@every_notebook
def test_a_notebook_runs_on_a_mooncake_file(path: Path, tmp_path: Path) -> None:
    # Mostly first turns, so that no size reaches the hit rates that the notebooks are about.
    chat = Chat(document_percent=0, mean_turns=1, mean_system_tokens=64)
    trace = synthesize(chat, num_requests=60, seed=1)
    notebook = read(path)
    own = mooncake(trace, tmp_path / "my_trace.jsonl")
    execute(notebook, folder=tmp_path, trace=own, fast=path.stem in WALL_CLOCK)
    assert texts(notebook) != texts(read(path))  # it was read


@every_notebook
def test_a_committed_notebook_asks_shows_and_ends_with_its_finding(path: Path) -> None:
    cells = read(path).cells
    assert re.match(r"# [^\n?]+\?\n", cells[0].source)  # one question
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert re.search("^(import|from) kvsim", code[0].source, re.MULTILINE)
    assert TRACE_VARIABLE in code[1].source
    assert not any(TRACE_VARIABLE in cell.source for cell in code[2:])
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1))
    pictures = [out for cell in code for out in cell.outputs if "image/png" in out.get("data", {})]
    assert pictures
    assert cells[-1].source.startswith("## Finding\n")
    assert "**Limits.**" in cells[-1].source


@every_notebook
def test_every_number_of_a_finding_is_in_the_outputs_or_the_configuration(path: Path) -> None:
    notebook = read(path)
    code = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    known = numbers(" ".join([*texts(notebook), *code]))
    # 0.0376 in a table may be called 3.8 points.
    known |= {round(100 * number, 1) for number in known if number < 1}
    finding = numbers(notebook.cells[-1].source)
    assert finding
    assert sorted(finding - known) == []


@every_notebook
def test_a_committed_notebook_holds_nothing_of_the_machine_it_ran_on(path: Path) -> None:
    notebook = read(path)
    shown = "".join([*texts(notebook), *(cell.source for cell in notebook.cells)])
    assert not re.search(r"(/tmp|/home|/root|/Users|[A-Z]:\\)", shown)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert not any(cell.metadata for cell in notebook.cells)


def test_a_notebook_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(SystemExit, match="no notebook '1_first_replay': 01_first_replay, 02_"):
        main(["01_first_replay", "1_first_replay"])

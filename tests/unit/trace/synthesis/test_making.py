from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.errors import UserError
from kvsim.trace import synthesize, write_model
from kvsim.trace.synthesis import Rag, parse_workload
from tests.unit.trace.synthesis.models import small_model

ROOT = Path(__file__).parents[4]


def test_a_line_names_the_same_workload_as_its_value() -> None:
    assert parse_workload("rag:passages=3,exponent=1.5") == Rag(passages=3, exponent=1.5)
    by_name = synthesize("rag:passages=3", num_requests=20, seed=4)
    assert by_name.requests == synthesize(Rag(passages=3), num_requests=20, seed=4).requests
    assert by_name.name == "rag-4"


def test_a_workload_goes_with_any_arrivals() -> None:
    even = synthesize("system-prompts", num_requests=50)
    bursty = synthesize("system-prompts", num_requests=50, arrivals="bursts:gap_s=2,size=8")
    assert even.requests[-1].arrived_at != bursty.requests[-1].arrived_at


def test_a_model_is_drawn_from_its_file_or_its_value(tmp_path: Path) -> None:
    model = small_model()
    write_model(model, tmp_path / "m.toml")
    by_file = synthesize(tmp_path / "m.toml", seed=5)
    assert by_file.requests == synthesize(model, seed=5).requests
    assert by_file.requests == synthesize(str(tmp_path / "m.toml"), seed=5).requests
    assert (by_file.name, by_file.num_requests) == ("m-5", model.num_requests)
    assert "Do not rank eviction policies on it" in by_file.repairs[0]


def test_the_arrivals_of_a_model_can_be_replaced() -> None:
    trace = synthesize(small_model(), num_requests=10, arrivals="poisson:gap_s=0")
    assert [each.arrived_at for each in trace.requests] == [0] * 10


def test_the_bytes_do_not_depend_on_the_hash_seed() -> None:
    code = (
        "import hashlib; from pathlib import Path; from kvsim.trace import synthesize;"
        "from kvsim.trace.kvsim_jsonl import encoded;"
        "made = [encoded(synthesize(n, num_requests=60, seed=9), Path('x'))"
        " for n in ('chat', 'system-prompts', 'rag', 'agents')];"
        "print(hashlib.sha256(b''.join(made)).hexdigest())"
    )
    found = set()
    for hash_seed in ("0", "1"):
        environment = os.environ | {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(ROOT)}
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"model": "raq"}, "unknown workload 'raq'. Did you mean 'rag'"),
        ({"model": "rag", "num_requests": 0}, "num_requests must be an integer of at least 1"),
        ({"model": "rag", "seed": 1.5}, "seed must be an integer"),
        ({"model": "rag", "block_size": 0}, "block_size must be an integer of at least 1"),
        ({"model": "rag", "arrivals": "often"}, "unknown arrival model 'often'"),
        ({"model": "no.toml"}, "no.toml: no such file or directory"),
        ({"model": small_model(), "block_size": 32}, "block_size of this model is 16, not 32"),
    ],
)
def test_what_cannot_be_made_is_refused(arguments: dict[str, object], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        synthesize(**arguments)  # type: ignore[arg-type]

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from kvsim.cost import KvKind
from kvsim.errors import ConfigError
from kvsim.presets import HARDWARE, MODELS
from kvsim.replay_config import ReplayConfig
from kvsim.run_file import load_run_file

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return tmp_path / "run.toml"


def test_a_run_file_has_the_names_of_the_config(run_file: Path) -> None:
    run_file.write_text('gpu_blocks = 10_000\npolicy = "fifo"\nwarmup = 0.5\ninstant = true\n')
    assert load_run_file(run_file) == ReplayConfig(
        gpu_blocks=10_000, policy="fifo", warmup=0.5, instant=True
    )


def test_an_empty_run_file_is_the_defaults(run_file: Path) -> None:
    run_file.write_text("")
    assert load_run_file(run_file) == ReplayConfig()


def test_a_machine_can_be_a_preset_with_other_values(run_file: Path) -> None:
    run_file.write_text(
        '[hardware]\nbase = "h200-8x"\nname = "half"\nnum_gpus = 4\n'
        "[hardware.host_link]\nbytes_per_second = 450_000_000_000\n"
    )
    base = HARDWARE["h200-8x"]
    link = replace(base.host_link, bytes_per_second=450_000_000_000)
    assert load_run_file(run_file).hardware == replace(
        base, name="half", num_gpus=4, host_link=link
    )


def test_a_model_can_be_given_whole_or_by_a_preset(run_file: Path) -> None:
    run_file.write_text('[model]\nbase = "deepseek-v3"\nkv_kind = "mla"\nnum_layers = 10\n')
    assert load_run_file(run_file).model == replace(MODELS["deepseek-v3"], num_layers=10)
    run_file.write_text(
        '[model]\nname = "tiny"\nnum_layers = 2\nnum_heads = 8\nnum_kv_heads = 8\n'
        "head_dim = 1\nnum_parameters = 100\nnum_active_parameters = 100\n"
    )
    tiny = load_run_file(run_file).model_shape
    assert (tiny.name, tiny.kv_kind, tiny.weight_bits) == ("tiny", KvKind.GQA, 16)


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("gpu_blocks = 1\ngpu_block = 5", 2, "unknown setting 'gpu_block'. Did you mean 'gpu_"),
        ("seed = 1\n\ngpu_blocks = 0", 3, "gpu_blocks must be an integer of at least 1, not 0"),
        ('gpu_blocks = "10"', 1, "gpu_blocks must be an integer of at least 1, not '10'"),
        ("seed = 1\nwarmup = nan", 2, "warmup must be a share of the requests"),
        ("gpu_blocks = 1\ngpu_gib = 2", 1, "gpu_blocks and gpu_gib exclude each other"),
        ('seed = 1\nmodel = "lama"', 2, "unknown model 'lama'"),
        ("seed = 1\nmodel = 5", 2, "model must be a name or a ModelShape, not 5"),
        ('seed = 1\nswap_in = "no"', 2, "unknown swap_in 'no'"),
        (
            "seed = 1\n[model]\nlayers = 3",
            3,
            "unknown key of model 'layers'. Did you mean 'num_lay",
        ),
        ('[model]\nbase = "deepseek-v3"\nkv_kind = "mha"', 3, "unknown kv_kind 'mha'"),
        ("[hardware]\nbase = 3", 2, "base must be the name of a preset, not 3"),
        ('[hardware]\nbase = "h200"', 1, "unknown hardware 'h200'. Did you mean 'h200-8x'?"),
        ('[hardware]\nbase = "h200-8x"\nhost_link = 5', 3, "host_link must be a table, not 5"),
        ('[hardware]\nbase = "h200-8x"\nnum_gpus = 2.0', 3, "num_gpus of hardware must be of type"),
        ('[hardware]\nname = "x"\nnum_gpus = 2', 1, "hardware lacks 'flops_per_second', "),
        ("seed = = 1", 1, "not valid TOML: Invalid value"),
        ("seed = 1\nseed = 2", 2, "not valid TOML: Cannot overwrite a value"),
    ],
)
def test_a_mistake_is_told_with_its_line(
    run_file: Path, text: str, line: int, message: str
) -> None:
    run_file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_run_file(run_file)
    assert str(caught.value).startswith(f"{run_file}:{line}: {message}")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"seed = 1 # \xff", "not UTF-8 text"),
        (b"a = " + b"[" * 100_000, "not valid TOML"),
        (b"seed = " + b"9" * 10_000, "not valid TOML"),
        (b"\x00", "not valid TOML"),
    ],
)
def test_a_file_that_is_not_toml_is_refused(run_file: Path, content: bytes, message: str) -> None:
    run_file.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        load_run_file(run_file)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"x\.toml: no such file"):
        load_run_file(tmp_path / "x.toml")
    with pytest.raises(ConfigError, match="a directory"):
        load_run_file(tmp_path)

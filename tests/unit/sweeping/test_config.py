from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import ConfigError, UserError
from kvsim.replay_config import ReplayConfig
from kvsim.sweeping.config import SweepConfig, load_sweep_file, sweep_config

WHOLE = """\
[sweep]
traces = ["sample:chat", "x.jsonl"]
policies = ["lru", "mymodule:MyPolicy"]
gpu_blocks = [1_000, 3_000]
cpu_blocks = [0, 3_000]
seeds = [0, 1]
mode = "timed"

[sweep.settings]
warmup = 0.5
swap_in = "overlap"

[[sweep.configs]]
name = "wait"
swap_in = "wait"

[[sweep.configs]]
name = "small"
[sweep.configs.model]
base = "llama-3.1-8b"
num_layers = 2
"""


def config_of(**changes: object) -> SweepConfig:
    table: dict[str, object] = {"traces": ["t"], "policies": ["lru"]}
    return sweep_config(table | changes, folder=Path())


def test_a_file_has_the_names_of_the_config(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(WHOLE)
    config = load_sweep_file(tmp_path / "sweep.toml")
    assert config.traces == ("sample:chat", "x.jsonl")
    assert config.policies == ("lru", "mymodule:MyPolicy")
    assert (config.gpu_blocks, config.cpu_blocks) == ((1000, 3000), (0, 3000))
    assert (config.seeds, config.mode) == ((0, 1), "timed")
    wait, small = config.variants().values()
    assert wait == ReplayConfig(warmup=0.5, swap_in="wait")
    assert (small.swap_in, small.warmup, small.model_shape.num_layers) == ("overlap", 0.5, 2)


def test_paths_of_traces_begin_at_the_folder_of_the_file(tmp_path: Path) -> None:
    (tmp_path / "sweep.toml").write_text(WHOLE)
    config = load_sweep_file(tmp_path / "sweep.toml")
    assert config.location("x.jsonl") == str(tmp_path / "x.jsonl")
    assert config.location("/a/x.jsonl") == "/a/x.jsonl"
    assert config.location("sample:chat") == "sample:chat"


def test_without_variants_there_is_one_and_it_has_no_clock() -> None:
    assert config_of().variants() == {"default": ReplayConfig(instant=True)}


def test_the_key_around_a_table_is_optional() -> None:
    table = {"traces": ["t"], "policies": ["lru"]}
    assert sweep_config({"sweep": table}, folder=Path()) == sweep_config(table, folder=Path())


def test_sizes_in_gib_are_settings_where_there_is_no_list_of_sizes() -> None:
    assert config_of(settings={"gpu_gib": 40}).variants()["default"].gpu_gib == 40


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"traces": []}, "traces must have a value at least, not []"),
        ({"traces": "t"}, "traces must be a list, not 't'"),
        ({"policies": [1]}, "policies must be a list of texts, and has 1"),
        ({"policies": ["lru", "lru"]}, "policies has 'lru' twice: leave one out"),
        ({"gpu_blocks": [0]}, "gpu_blocks must be an integer of at least 1, not 0"),
        ({"cpu_blocks": [True]}, "cpu_blocks must be an integer of at least 0, not True"),
        ({"seeds": [-1]}, "seeds must be an integer of at least 0, not -1"),
        ({"mode": "instnat"}, "unknown mode 'instnat'. Did you mean 'instant'?"),
        ({"polices": ["lru"]}, "unknown key of a sweep 'polices'. Did you mean 'policies'?"),
        ({"settings": {"warmpu": 1}}, "unknown setting 'warmpu'. Did you mean 'warmup'?"),
        ({"settings": {"name": "x"}}, "unknown setting 'name'."),
        ({"settings": {"warmup": 1.0}}, "warmup must be a share of the requests"),
        ({"settings": {"policy": "lru"}}, "policy has its values in policies of the sweep"),
        ({"settings": {"seed": 1}}, "seed has its values in seeds of the sweep"),
        ({"settings": {"instant": True}}, "instant has its values in mode of the sweep"),
        (
            {"gpu_blocks": [1], "settings": {"gpu_gib": 1}},
            "gpu_gib has its values in gpu_blocks of the sweep: leave it out of settings",
        ),
        ({"settings": {"backend": "paddle"}, "mode": "timed"}, "backend 'paddle' runs on the wall"),
        ({"settings": 3}, "settings must be a table, not 3"),
        ({"configs": [3]}, "configs 1 must be a table, not 3"),
        ({"configs": [{"swap_in": "wait"}]}, "name must be the text that configs 1 goes by"),
        ({"configs": [{"name": "a"}, {"name": "a"}]}, "configs has 'a' twice"),
    ],
)
def test_what_cannot_be_swept_is_said_in_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UserError) as raised:
        config_of(**changes)
    assert str(raised.value).startswith(message)


def test_traces_and_policies_are_needed() -> None:
    with pytest.raises(ConfigError, match="sweep lacks policies: a list of at least one"):
        sweep_config({"traces": ["t"]}, folder=Path())
    with pytest.raises(ConfigError, match="sweep must be a table, not 3"):
        sweep_config({"sweep": 3}, folder=Path())


@pytest.mark.parametrize(
    ("old", "new", "line", "message"),
    [
        ("seeds = [0, 1]", "seeds = [0, 0]", 6, "seeds has 0 twice"),
        ("seeds", "sedes", 6, "unknown key of a sweep 'sedes'"),
        ("warmup = 0.5", "warmup = 5", 10, "warmup must be a share"),
        # The key is in the settings too, in line 11: the variant's is meant.
        ('"wait"\n\n', '"wiat"\n\n', 15, "unknown swap_in 'wiat'"),
        ("num_layers", "num_leyers", 21, "unknown key of model 'num_leyers'"),
        ("policies = ", "policies ", 3, "not valid TOML"),
        ('policies = ["lru", "mymodule:MyPolicy"]\n', "", 1, "sweep lacks policies"),
    ],
)
def test_an_error_names_the_file_and_the_line(
    tmp_path: Path, old: str, new: str, line: int, message: str
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(WHOLE.replace(old, new))
    with pytest.raises(ConfigError) as raised:
        load_sweep_file(file)
    assert str(raised.value).startswith(f"{file}:{line}: {message}")
    assert "\n" not in str(raised.value)

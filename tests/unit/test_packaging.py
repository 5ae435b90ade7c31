"""What is installed, and what merely importing it costs."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
HEAVY = ("matplotlib", "numba", "paddle", "pandas", "pyarrow")


def run_python(*args: str, path: Path = ROOT, cwd: Path = ROOT) -> str:
    """Run this interpreter with kvsim taken from `path`; return what it printed."""
    done = subprocess.run(
        [sys.executable, *args],
        cwd=cwd,
        env=os.environ | {"PYTHONPATH": str(path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Build the wheel, offline: the build backend is the installed one."""
    if importlib.util.find_spec("hatchling") is None:
        pytest.skip("hatchling, which builds the wheel, is not installed (pip install '.[dev]')")
    folder = tmp_path_factory.mktemp("wheel")
    run_python("-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.parametrize(
    "module", ["kvsim", "kvsim.core.engine", "kvsim.hitrate", "kvsim.policies"]
)
def test_an_import_loads_no_heavy_package(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{*{HEAVY!r}}} & {{*sys.modules}}))"
    assert run_python("-c", code).split() == []


def test_python_m_kvsim_prints_the_version_of_the_project() -> None:
    assert PROJECT["version"] in run_python("-m", "kvsim", "--version")


def test_the_package_and_the_citation_name_the_version_of_the_project() -> None:
    printed = run_python("-c", "import kvsim; print(kvsim.__version__)").strip()
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.search(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    assert cited is not None
    assert [printed, cited[1]] == [PROJECT["version"]] * 2


def test_the_changelog_has_a_section_for_the_version() -> None:
    headings = re.findall(r"^## .*$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE)
    assert any(PROJECT["version"] in heading for heading in headings), headings


def test_the_wheel_carries_the_samples_and_the_types_and_no_test(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    samples = {f"kvsim/_traces/{path.name}" for path in (ROOT / "traces").glob("*.jsonl")}
    assert samples
    assert {name for name in names if "_traces/" in name} == samples
    assert "kvsim/py.typed" in names
    assert {name.split("/")[0] for name in names} == {
        "kvsim",
        f"kvsim-{PROJECT['version']}.dist-info",
    }


def test_the_wheel_replays_its_own_sample(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(site)
    # No checkout is on the path before it, so a sample that is found is the wheel's.
    run_python(
        *("-m", "kvsim", "replay", "sample:chat", "--gpu-blocks", "1000"),
        path=site,
        cwd=tmp_path,
    )


def test_no_extra_names_nixl_or_both_builds_of_paddle() -> None:
    # NIXL declares a dependency that it does not need, and an extra cannot say --no-deps; both
    # builds of Paddle own the import name `paddle`, and the last one installed would win.
    for extra, wanted in PROJECT["optional-dependencies"].items():
        names = {re.split(r"[\[<>=~! ]", requirement)[0] for requirement in wanted}
        assert not any(name.startswith("nixl") for name in names), extra
        if extra != "gpu":
            assert "paddlepaddle-gpu" not in names, extra

"""`kvsim.doctor`: what is installed and works on this machine, and what to install for what."""

from __future__ import annotations

import importlib
import shutil
import sys
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_STATE_WIDTH: Final = 9
PADDLE_CPU, PADDLE_GPU = "paddlepaddle", "paddlepaddle-gpu"
OLDEST_PADDLE: Final = (3, 2)

EXTRAS: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "recordings and worker processes": ("workers", ("msgspec", "pyzmq")),
    "sweeps on the processes of a machine": ("sweep", ("joblib",)),
    "sweeps on a Dask cluster": ("distributed", ("dask", "distributed", "joblib")),
    "notebooks": ("notebook", ("ipykernel", "nbclient", "nbformat")),
    "tests of your own policy or backend": ("testing", ("hypothesis",)),
    "tokens of a model for traces of text": ("tokenizers", ("tokenizers",)),
    "compiled loops": ("fast", ("numba",)),
}
"""What for -> (extra of kvsim, packages it takes)."""

BASE: Final = ("numpy", "pandas", "pyarrow", "matplotlib", "rich")
NIXL: Final = ("nixl-cu12", "nixl-cu13")
CUDA_BINDINGS: Final = "cuda-bindings"

_PYTHONS: Final = ((3, 11), (3, 13))
_NVIDIA: Final = Path("/dev/nvidia0")
_SHM: Final = Path("/dev/shm")
_LITTLE_SHM_BYTES: Final = 1 << 30
_LITTLE_PINNED_BYTES: Final = 1 << 30


class State(StrEnum):
    """How a thing is."""

    OK = "ok"
    MISSING = "missing"
    """Not there; only needed for what the line says."""
    NOTE = "note"
    """There, and you should know something about it."""
    BROKEN = "broken"
    """There, and will not work as it is."""


class Finding(NamedTuple):
    """One line: a thing, how it is, what was seen, and what to do about it."""

    what: str
    state: State
    found: str
    advice: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """What was seen on a machine.

    Parameters
    ----------
    python
        Its version.
    versions
        Of the packages that are installed.
    paddle_problem
        Why Paddle does not load; empty if it does, or is not there.
    paddle_cuda
        Release of CUDA that Paddle is built for; empty for none.
    num_gpus
        That Paddle sees.
    has_nvidia
        Whether the system has a GPU of Nvidia's.
    pinned_bytes
        How much memory this process may pin; None: as much as it likes, or the system does not say.
    shm_bytes
        Free shared memory; None: the system has none of that name.
    """

    python: tuple[int, int, int]
    versions: Mapping[str, str]
    paddle_problem: str = ""
    paddle_cuda: str = ""
    num_gpus: int = 0
    has_nvidia: bool = False
    pinned_bytes: int | None = None
    shm_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Doctor:
    """What `kvsim.doctor` has found, one finding a thing."""

    findings: tuple[Finding, ...]

    @property
    def is_broken(self) -> bool:
        """Whether something that is there will not work as it is."""
        return any(each.state is State.BROKEN for each in self.findings)

    def to_dict(self) -> dict[str, object]:
        """Return the findings as JSON values."""
        return {"broken": self.is_broken, "findings": [each._asdict() for each in self.findings]}

    def lines(self) -> list[str]:
        """Return one line a finding, and one about all of them."""
        found = [
            f"{each.state:<{_STATE_WIDTH}}{each.what}{f': {each.found}' if each.found else ''}"
            f"{f' -> {each.advice}' if each.advice else ''}"
            for each in self.findings
        ]
        broken = [each.what for each in self.findings if each.state is State.BROKEN]
        if broken:
            return [*found, f"broken: {', '.join(broken)}"]
        return [*found, "nothing is broken; what is missing is needed only for what its line says"]

    def __repr__(self) -> str:
        return "\n".join(self.lines())


def doctor() -> Doctor:
    """Look at this machine; changes nothing. Loads Paddle, which takes some seconds."""
    return diagnose(look())


def diagnose(facts: Facts) -> Doctor:
    """Return what is to be said about a machine."""
    return Doctor(
        findings=(
            _python(facts),
            _base(facts),
            *_paddle(facts),
            *_gpu(facts),
            _memory("pinned memory", facts.pinned_bytes, _LITTLE_PINNED_BYTES, _PINNED_ADVICE),
            _shm(facts),
            _nixl(facts),
            *_extras(facts),
        )
    )


def look() -> Facts:
    """Return what there is to see here."""
    names = {*BASE, PADDLE_CPU, PADDLE_GPU, CUDA_BINDINGS, *NIXL}
    names |= {name for _, packages in EXTRAS.values() for name in packages}
    versions = {name: found for name in sorted(names) if (found := _version(name))}
    problem, cuda, num_gpus = "", "", 0
    if PADDLE_CPU in versions or PADDLE_GPU in versions:
        problem, cuda, num_gpus = _look_at_paddle()
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor, sys.version_info.micro),
        versions=versions,
        paddle_problem=problem,
        paddle_cuda=cuda,
        num_gpus=num_gpus,
        has_nvidia=_NVIDIA.exists(),
        pinned_bytes=_pinned_bytes(),
        shm_bytes=shutil.disk_usage(_SHM).free if _SHM.is_dir() else None,
    )


# -- findings


def _python(facts: Facts) -> Finding:
    found = ".".join(map(str, facts.python))
    oldest, newest = _PYTHONS
    if oldest <= facts.python[:2] <= newest:
        return Finding("Python", State.OK, found)
    advice = f"use {oldest[0]}.{oldest[1]} to {newest[0]}.{newest[1]}"
    return Finding("Python", State.BROKEN, found, advice)


def _base(facts: Facts) -> Finding:
    missing = [name for name in BASE if name not in facts.versions]
    found = ", ".join(f"{name} {facts.versions[name]}" for name in BASE if name not in missing)
    if missing:
        advice = f"pip install {' '.join(missing)}"
        return Finding("replays, curves, plots", State.BROKEN, found, advice)
    return Finding("replays, curves, plots", State.OK, found)


def _paddle(facts: Facts) -> Iterator[Finding]:
    what = "real tensors (Paddle)"
    cpu, gpu = facts.versions.get(PADDLE_CPU), facts.versions.get(PADDLE_GPU)
    if cpu and gpu:
        yield Finding(
            what,
            State.BROKEN,
            f"{PADDLE_CPU} {cpu} and {PADDLE_GPU} {gpu}",
            "both own the name paddle: uninstall both, then install one",
        )
        return
    if not cpu and not gpu:
        yield Finding(what, State.MISSING, "", "pip install 'kvsim[paddle]' (on the CPU)")
        return
    name, found = (PADDLE_GPU, gpu) if gpu else (PADDLE_CPU, cpu)
    release = _release(found or "")
    if facts.paddle_problem:
        advice = "uninstall it and install it anew"
        yield Finding(what, State.BROKEN, f"{name} {found}: {facts.paddle_problem}", advice)
    elif release < OLDEST_PADDLE:
        advice = "too old: take 3.2 or later, for a GPU from Paddle's own index"
        yield Finding(what, State.BROKEN, f"{name} {found}", advice)
    else:
        yield Finding(what, State.OK, f"{name} {found}")


def _gpu(facts: Facts) -> Iterator[Finding]:
    what, is_gpu_build = "GPU", PADDLE_GPU in facts.versions
    if facts.num_gpus:
        yield Finding(what, State.OK, f"Paddle sees {facts.num_gpus}")
    elif is_gpu_build and PADDLE_CPU not in facts.versions:
        # It says that it is compiled for CUDA here too, so it is asked for devices instead.
        advice = "run with --device cpu, or where there is a GPU and its driver"
        yield Finding(what, State.NOTE, "none, and Paddle's build is the one for GPUs", advice)
    elif facts.has_nvidia:
        advice = "for --device gpu:0 take paddlepaddle-gpu from Paddle's own index instead"
        yield Finding(what, State.NOTE, "the system has one, Paddle does not see it", advice)
    else:
        yield Finding(what, State.MISSING, "none", "only --device gpu:N needs one")
    what, bindings = "copies on a GPU (cuda-bindings)", facts.versions.get(CUDA_BINDINGS)
    cuda = facts.paddle_cuda.partition(".")[0]
    if bindings is None:
        advice = f"pip install 'cuda-bindings=={cuda or '12'}.*' (the major release of your CUDA)"
        yield Finding(what, State.MISSING, "", advice)
    elif cuda and bindings.partition(".")[0] != cuda:
        found = f"{bindings}, and Paddle is built for CUDA {facts.paddle_cuda}"
        yield Finding(what, State.BROKEN, found, f"pip install 'cuda-bindings=={cuda}.*'")
    else:
        yield Finding(what, State.OK, bindings)


def _memory(what: str, num_bytes: int | None, little_bytes: int, advice: str) -> Finding:
    if num_bytes is None:
        return Finding(what, State.OK, "no limit")
    if num_bytes < little_bytes:
        return Finding(what, State.NOTE, _size(num_bytes), advice)
    return Finding(what, State.OK, _size(num_bytes))


def _shm(facts: Facts) -> Finding:
    what = "shared memory (/dev/shm)"
    if facts.shm_bytes is None:
        return Finding(what, State.MISSING, "", "only ranks that share memory need it")
    found = _memory(what, facts.shm_bytes, _LITTLE_SHM_BYTES, _SHM_ADVICE)
    return found._replace(found=f"{found.found} free")


def _nixl(facts: Facts) -> Finding:
    what = "remote copies (NIXL, with UCX)"
    there = [f"{name} {facts.versions[name]}" for name in NIXL if name in facts.versions]
    if there:
        return Finding(what, State.OK, ", ".join(there))
    return Finding(what, State.MISSING, "", "pip install --no-deps nixl-cu12")


def _extras(facts: Facts) -> Iterator[Finding]:
    for what, (extra, packages) in EXTRAS.items():
        there = [f"{name} {facts.versions[name]}" for name in packages if name in facts.versions]
        is_whole = len(there) == len(packages)
        state = State.OK if is_whole else State.MISSING
        advice = "" if is_whole else f"pip install 'kvsim[{extra}]'"
        yield Finding(what, state, ", ".join(there), advice)


_PINNED_ADVICE: Final = "ulimit -l unlimited, before a run on a GPU: it pins the CPU tier"
_SHM_ADVICE: Final = "in a container: --shm-size, if ranks share memory"


# -- looking


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _look_at_paddle() -> tuple[str, str, int]:
    """Return why it does not load, the CUDA it is built for, and how many GPUs it sees."""
    from kvsim.backends.paddle.runtime import load_paddle

    try:
        paddle = load_paddle()
        cuda = str(paddle.version.cuda())
        num_gpus = int(paddle.device.cuda.device_count())
    except (ConfigError, ImportError, OSError, AttributeError) as error:
        return " ".join(str(error).split()), "", 0
    return "", cuda if cuda[:1].isdigit() else "", num_gpus


def _pinned_bytes() -> int | None:
    try:
        resource = importlib.import_module("resource")
    except ModuleNotFoundError:  # Windows
        return None
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else int(soft)


def _release(text: str) -> tuple[int, ...]:
    """Return the first two numbers of a version."""
    parts = text.split(".")[:2]
    return tuple(int(part) if part.isdigit() else 0 for part in parts)


def _size(num_bytes: int) -> str:
    if num_bytes >= 1 << 30:
        return f"{num_bytes / (1 << 30):,.1f} GiB"
    return f"{num_bytes / (1 << 20):,.1f} MiB"

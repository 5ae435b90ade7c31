"""Paddle, imported when it is needed and not before; and what it makes of a device's name."""

from __future__ import annotations

import importlib
import re
import warnings
from typing import TYPE_CHECKING, Any

from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from types import ModuleType


def load_paddle() -> ModuleType:
    """Import Paddle (a few seconds, the first time) and return it.

    Raises
    ------
    ConfigError
        If it is not installed, or lacks something itself; the message says how to.
    """
    try:
        with warnings.catch_warnings():
            # It says so wherever ccache is missing, which only its C++ extensions would use.
            warnings.filterwarnings("ignore", "No ccache found", UserWarning)
            return importlib.import_module("paddle")
    except ModuleNotFoundError as error:
        if error.name != "paddle":
            raise ConfigError(f"PaddlePaddle is installed but does not load: {error}") from error
        raise ConfigError(
            "backend 'paddle' needs PaddlePaddle, which is not installed:"
            " pip install 'kvsim[paddle]' (on the CPU)"
        ) from error


def device_index(device: str) -> int:
    """Return the number of "gpu:N": all of it, not its last digit.

    Raises
    ------
    ConfigError
        If the name is another.
    """
    match = re.fullmatch(r"gpu:(\d{1,3})", device)
    if match is None:
        raise ConfigError(f"device must be 'cpu' or 'gpu:N' with a number N, not {device!r}")
    return int(match[1])


def find_place(device: str) -> Any:  # noqa: ANN401  (Paddle has no types)
    """Return Paddle's place for "cpu" or "gpu:N".

    Raises
    ------
    ConfigError
        If the name is another, or no such GPU is visible.
    """
    paddle = load_paddle()
    if device == "cpu":
        return paddle.CPUPlace()
    index = device_index(device)
    # A build for CUDA says that it is one on a machine without a GPU too, so it is not asked.
    num_gpus = paddle.device.cuda.device_count()
    if index >= num_gpus:
        raise ConfigError(f"device {device!r} is not there: Paddle sees {num_gpus} GPUs")
    return paddle.CUDAPlace(index)

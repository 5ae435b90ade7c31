"""NIXL, opened the way that transport `rdma` needs it."""

from __future__ import annotations

import importlib
import logging
import os
import threading
from typing import Any, Final

from kvsim.backends.transports.ports import TransportError
from kvsim.errors import ConfigError

_MODULES: Final = ("nixl_cu12", "nixl_cu13")
_ENVIRONMENT: Final = threading.Lock()


def open_agent(name: str, device: str) -> tuple[Any, tuple[type[Exception], ...]]:
    """Return an agent of NIXL that uses one network device and no progress thread, and its errors.

    Raises
    ------
    ConfigError
        If NIXL is not installed.
    TransportError
        If UCX cannot be started.
    """
    settings = {
        "UCX_NET_DEVICES": device,
        "UCX_TLS": "^sm",
        "UCX_LOG_LEVEL": "fatal",  # what fails is told by `poll`
        "NIXL_LOG_LEVEL": "FATAL",
    }
    with _ENVIRONMENT, _set_environment(**settings):
        api, bindings = _load("_api"), _load("_bindings")
        names = [each for each in dir(bindings) if each.endswith("Error")]
        errors = (RuntimeError, *(getattr(bindings, each) for each in names))
        logging.getLogger("nixl").setLevel(logging.ERROR)  # it greets on stderr
        config = api.nixl_agent_config(enable_prog_thread=False, backends=[])
        agent = api.nixl_agent(name, config)
        try:
            agent.create_backend("UCX", {})
        except errors as error:
            raise TransportError(f"UCX cannot be started on device {device!r}: {error}") from error
    return agent, errors


def _load(part: str) -> Any:  # noqa: ANN401  (NIXL has no types)
    for module in _MODULES:
        try:
            return importlib.import_module(f"{module}.{part}")
        except ModuleNotFoundError:
            continue
    raise ConfigError(
        "rdma needs NIXL, which is not installed: pip install --no-deps nixl-cu12==1.5.1"
    )


class _set_environment:  # noqa: N801  (used like a function)
    """Have variables in the environment for a while: UCX takes its settings from there alone."""

    def __init__(self, **values: str) -> None:
        self._values = values
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        self._before = {name: os.environ.get(name) for name in self._values}
        # What the administrator of the machine has set is left alone.
        os.environ.update({n: v for n, v in self._values.items() if self._before[n] is None})

    def __exit__(self, *_: object) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)

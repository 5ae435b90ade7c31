"""Copies between a GPU and the host, or within a GPU, by the CUDA runtime."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

import numpy as np

from kvsim.backends.paddle.copier import CopyError, check_rows
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.region import Region


def load_runtime() -> Any:  # noqa: ANN401  (the bindings have no types)
    """Import the CUDA runtime's bindings and return them.

    Raises
    ------
    ConfigError
        If they are not installed; the message says how to.
    """
    try:
        return importlib.import_module("cuda.bindings.runtime")
    except ModuleNotFoundError as error:
        raise ConfigError(
            "copies to and from a GPU need cuda-bindings, which are not installed:"
            " pip install 'cuda-bindings' with the major version of your CUDA"
        ) from error


class CudaCopier:
    """Copies rows with `cudaMemcpyAsync`, neighbouring rows as one, on a stream of its own.

    The stream is not the one that computes: Paddle's streams are per device. Not for use by two
    threads, since the first one that copies makes the stream.

    Parameters
    ----------
    device_index
        The GPU.
    runtime
        `cuda.bindings.runtime`, or what behaves like it.
    """

    def __init__(self, device_index: int, *, runtime: Any = None) -> None:  # noqa: ANN401
        self._runtime = load_runtime() if runtime is None else runtime
        self._device_index = device_index
        self._stream: object | None = None

    def copy(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> None:
        """Copy rows (see `kvsim.backends.paddle.copier.Copier.copy`)."""
        check_rows(source, source_rows, num_rows, row_bytes)
        check_rows(target, target_rows, num_rows, row_bytes)
        cuda = self._runtime
        stream = self._own_stream()
        kind = cuda.cudaMemcpyKind.cudaMemcpyDefault
        try:
            for first, other_first, length in merged_runs(source_rows, target_rows, num_rows):
                self._call(
                    "cudaMemcpyAsync",
                    target.ptr + other_first * row_bytes,
                    source.ptr + first * row_bytes,
                    length * row_bytes,
                    kind,
                    stream,
                )
        finally:
            # Also after an error: what is on its way must not arrive when the rows are another's.
            self._call("cudaStreamSynchronize", stream)

    def _own_stream(self) -> object:
        """Return the stream, made by the first copy: a device is set for the thread that does."""
        if self._stream is None:
            self._call("cudaSetDevice", self._device_index)
            flags = self._runtime.cudaStreamNonBlocking
            (self._stream,) = self._call("cudaStreamCreateWithFlags", flags)
        return self._stream

    def _call(self, name: str, *arguments: object) -> tuple[Any, ...]:
        """Call the runtime, whose functions return an error code and then their results."""
        error, *results = getattr(self._runtime, name)(*arguments)
        if error != self._runtime.cudaError_t.cudaSuccess:
            raise CopyError(f"{name} failed: {error}")
        return tuple(results)


def merged_runs(
    source_rows: Rows | None, target_rows: Rows | None, num_rows: int
) -> Iterator[tuple[int, int, int]]:
    """Yield (first source row, first target row, number of rows) of runs that rise together."""
    if not num_rows:
        return
    here = np.arange(num_rows) if source_rows is None else source_rows
    there = np.arange(num_rows) if target_rows is None else target_rows
    breaks = np.flatnonzero((np.diff(here) != 1) | (np.diff(there) != 1)) + 1
    starts = [0, *breaks.tolist()]
    for start, stop in zip(starts, [*starts[1:], num_rows], strict=True):
        yield int(here[start]), int(there[start]), stop - start

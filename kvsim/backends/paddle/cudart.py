"""The CUDA runtime, as far as it is needed: its calls by their names, errors as exceptions."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from kvsim.backends.paddle.copier import CopyError
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

_FIRST_WITHOUT_FAIL_INDEX: Final = 13
"""CUDA 13 took the index of the failed copy out of `cudaMemcpyBatchAsync`.
Source: CUDA 13.0 release notes, and the signatures of cuda-bindings 12.9 and 13."""

_FIRST_DRIVER_WITH_BATCHES: Final = 12_080
"""`cudaMemcpyBatchAsync` came with CUDA 12.8. Source: its release notes."""


def load_bindings() -> tuple[Any, int]:
    """Import the bindings of the CUDA runtime; return them and their major version.

    Raises
    ------
    ConfigError
        If they are not installed; the message says how to.
    """
    try:
        runtime = importlib.import_module("cuda.bindings.runtime")
        version: str = importlib.import_module("cuda.bindings").__version__
    except ModuleNotFoundError as error:
        raise ConfigError(
            "copies to and from a GPU need cuda-bindings, which are not installed:"
            " pip install 'cuda-bindings' with the major version of your CUDA"
        ) from error
    return runtime, int(version.partition(".")[0])


class Cuda:
    """One device of the CUDA runtime.

    A device is set for the thread that calls: each method that needs it says so to the runtime,
    which costs nothing where it is set.

    Parameters
    ----------
    device_index
        The GPU.
    bindings
        `cuda.bindings.runtime`, or what behaves like it, and its major version; None: loaded.

    Raises
    ------
    ConfigError
        If the bindings are not installed.
    """

    def __init__(self, device_index: int, *, bindings: tuple[Any, int] | None = None) -> None:
        self.device_index = device_index
        self.runtime, self.major = load_bindings() if bindings is None else bindings

    def call(self, name: str, *arguments: object) -> tuple[Any, ...]:
        """Call the runtime, whose functions return an error code and then their results.

        Raises
        ------
        CopyError
            If the code is not that of success.
        """
        error, *results = getattr(self.runtime, name)(*arguments)
        if error != self.runtime.cudaError_t.cudaSuccess:
            raise CopyError(f"{name} failed: {error}")
        return tuple(results)

    def count_devices(self) -> int:
        """Return how many GPUs there are; 0 where there is no driver."""
        error, num_devices = self.runtime.cudaGetDeviceCount()
        return int(num_devices) if error == self.runtime.cudaError_t.cudaSuccess else 0

    def has_batches(self) -> bool:
        """Whether the driver knows `cudaMemcpyBatchAsync`, by its version."""
        (version,) = self.call("cudaDriverGetVersion")
        return int(version) >= _FIRST_DRIVER_WITH_BATCHES

    def use(self) -> None:
        """Make this the device of the calling thread."""
        self.call("cudaSetDevice", self.device_index)

    # -- streams and events

    def new_stream(self) -> Any:  # noqa: ANN401  (the bindings have no types)
        """Make a stream that does not wait for the default one."""
        self.use()
        return self.call("cudaStreamCreateWithFlags", self.runtime.cudaStreamNonBlocking)[0]

    def new_event(self, *, has_time: bool = False) -> Any:  # noqa: ANN401
        """Make an event; one without a time costs less."""
        flags = 0 if has_time else self.runtime.cudaEventDisableTiming
        return self.call("cudaEventCreateWithFlags", flags)[0]

    def has_happened(self, event: object) -> bool:
        """Whether all that came before an event on its stream is done; does not wait.

        Raises
        ------
        CopyError
            If something on the device has failed.
        """
        (error,) = self.runtime.cudaEventQuery(event)
        if error == self.runtime.cudaError_t.cudaErrorNotReady:
            return False
        if error != self.runtime.cudaError_t.cudaSuccess:
            raise CopyError(f"cudaEventQuery failed: {error}")
        return True

    def let_wait(self, stream: object, event: object) -> None:
        """Let a stream wait for an event of another; the host does not."""
        self.call("cudaStreamWaitEvent", stream, event, 0)

    # -- copies

    def copy(self, target: int, source: int, num_bytes: int, stream: object) -> None:
        """Copy one piece; the direction follows from the addresses."""
        kind = self.runtime.cudaMemcpyKind.cudaMemcpyDefault
        self.call("cudaMemcpyAsync", target, source, num_bytes, kind, stream)

    def copy_batch(
        self,
        targets: Sequence[int],
        sources: Sequence[int],
        sizes: Sequence[int],
        stream: object,
    ) -> object:
        """Copy many pieces in one call; return what must be kept until they are done."""
        attributes = self.runtime.cudaMemcpyAttributes()
        # The sources may be written again as soon as the stream says that the copies are done.
        order = self.runtime.cudaMemcpySrcAccessOrder.cudaMemcpySrcAccessOrderStream
        attributes.srcAccessOrder = order
        kept = (targets, sources, sizes, [attributes], [0])
        error, *results = self.runtime.cudaMemcpyBatchAsync(
            targets, sources, sizes, len(sizes), kept[3], kept[4], 1, stream
        )
        if error != self.runtime.cudaError_t.cudaSuccess:
            at = f" at piece {results[0]}" if self.major < _FIRST_WITHOUT_FAIL_INDEX else ""
            raise CopyError(f"cudaMemcpyBatchAsync failed{at} of {len(sizes)}: {error}")
        return kept

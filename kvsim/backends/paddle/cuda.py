"""Copies between a GPU and the host, or within a GPU, by the CUDA runtime."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kvsim.backends.paddle.copier import CopyError, check_rows, merged_runs
from kvsim.backends.region import MemoryKind

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.paddle.copier import Rows
    from kvsim.backends.paddle.cudart import Cuda
    from kvsim.backends.region import Region

_LONG_BYTES: Final = 1 << 20
"""From here on a piece is worth a call of its own, which takes the host 1 to 2 us."""

_BATCH_PIECES: Final = 512
"""Pieces of one batch at most, so that a large one does not hold the driver's lock for long."""

UP: Final = "up"
DOWN: Final = "down"


class CudaCopy:
    """A copy on a stream: it is done when its event has happened.

    `kept` are the descriptors of the copy, which must stay until then; so the copier knows every
    copy until it is done, also if nobody else does.
    """

    def __init__(self, copier: CudaCopier, event: object, kept: Sequence[object]) -> None:
        self._copier = copier
        self._event: object | None = event
        self._kept = kept

    @property
    def event(self) -> object | None:
        """What another stream can wait for; None once the copy is known to be done."""
        return self._event

    def is_done(self) -> bool:
        """Ask the event, without waiting."""
        if self._event is None:
            return True
        if not self._copier.cuda.has_happened(self._event):
            return False
        self._let_go()
        return True

    def wait(self) -> None:
        """Wait, on the host, until the bytes are there."""
        if self._event is not None:
            self._copier.cuda.call("cudaEventSynchronize", self._event)
            self._let_go()

    def _let_go(self) -> None:
        self._copier.take_back(self, self._event)
        self._event, self._kept = None, ()


class CudaCopier:
    """Copies rows with the CUDA runtime, neighbouring rows as one.

    Two streams of its own, one up (to the GPU, or within it) and one down, so that the directions
    do not wait for each other. Neither is the stream that computes: Paddle's are per device, for
    all threads. So nothing waits for a computation by itself; say `follow` where it must.

    Parameters
    ----------
    cuda
        The device.
    """

    def __init__(self, cuda: Cuda) -> None:
        self.cuda = cuda
        self._streams: dict[str, Any] = {}
        self._idle_events: list[Any] = []
        self._events: list[Any] = []  # idle or not
        self._under_way: set[CudaCopy] = set()
        self._has_batches = False

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> CudaCopy:
        """Begin to copy rows (see `kvsim.backends.paddle.copier.Copier.start`)."""
        check_rows(source, source_rows, num_rows, row_bytes)
        check_rows(target, target_rows, num_rows, row_bytes)
        stream = self._stream(UP if target.kind is MemoryKind.GPU else DOWN)
        kept: list[object] = []
        try:
            pieces = [
                (target.ptr + there * row_bytes, source.ptr + here * row_bytes, length * row_bytes)
                for here, there, length in merged_runs(source_rows, target_rows, num_rows)
            ]
            self._launch(pieces, stream, kept)
            event = self._idle_events.pop() if self._idle_events else self._new_event()
            self.cuda.call("cudaEventRecord", event, stream)
        except CopyError:
            # What is on its way must not arrive when the rows are another's.
            self.drain()
            raise
        copy = CudaCopy(self, event, kept)
        self._under_way.add(copy)
        return copy

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
        self.start(
            source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes
        ).wait()

    def follow(self, stream: object) -> None:
        """Let all copies that are started from now on wait for what a stream has to do by now.

        For copies of what a computation on that stream writes, and of blocks that it still reads.
        """
        event = self.cuda.new_event()
        self.cuda.call("cudaEventRecord", event, stream)
        for direction in (UP, DOWN):
            self.cuda.let_wait(self._stream(direction), event)
        self.cuda.call("cudaEventDestroy", event)  # freed once nobody waits for it

    def lead(self, stream: object, copy: CudaCopy) -> None:
        """Let a stream wait for a copy; the host does not. One for each layer of a swap-in."""
        if copy.event is not None:
            self.cuda.let_wait(stream, copy.event)

    def take_back(self, copy: CudaCopy, event: object) -> None:
        """Forget a copy that is done, and keep its event for the next."""
        self._under_way.discard(copy)
        self._idle_events.append(event)

    def drain(self) -> None:
        """Wait until nothing is on its way any more, whatever became of it."""
        for stream in self._streams.values():
            # An error here is that of a copy, whose own event tells it.
            self.cuda.runtime.cudaStreamSynchronize(stream)
        self._under_way.clear()

    def close(self) -> None:
        """Drain, and give the streams and events back."""
        self.drain()
        for event in self._events:
            self.cuda.runtime.cudaEventDestroy(event)
        for stream in self._streams.values():
            self.cuda.runtime.cudaStreamDestroy(stream)
        self._events.clear()
        self._idle_events.clear()
        self._streams.clear()

    def _new_event(self) -> Any:  # noqa: ANN401  (the bindings have no types)
        event = self.cuda.new_event()
        self._events.append(event)
        return event

    def _launch(
        self, pieces: Sequence[tuple[int, int, int]], stream: object, kept: list[object]
    ) -> None:
        short = []
        for target, source, num_bytes in pieces:
            if num_bytes >= _LONG_BYTES or not self._has_batches:
                self.cuda.copy(target, source, num_bytes, stream)
            else:
                short.append((target, source, num_bytes))
        for first in range(0, len(short), _BATCH_PIECES):
            targets, sources, sizes = map(
                list, zip(*short[first : first + _BATCH_PIECES], strict=True)
            )
            kept.append(self.cuda.copy_batch(targets, sources, sizes, stream))

    def _stream(self, direction: str) -> Any:  # noqa: ANN401  (the bindings have no types)
        """Return the stream of a direction, made by the first copy: a device is the thread's."""
        if not self._streams:
            self._has_batches = self.cuda.has_batches()
            self._streams = {each: self.cuda.new_stream() for each in (UP, DOWN)}
        return self._streams[direction]

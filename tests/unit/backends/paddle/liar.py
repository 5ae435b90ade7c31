"""A copier that leaves a copy out, to see whether the tensor backend finds it out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.backends.paddle.copier import DONE, HostCopier

if TYPE_CHECKING:
    from kvsim.backends.paddle.copier import Copy, Rows
    from kvsim.backends.region import Region


class Liar:
    """Copies, but for one layer of one transfer from the CPU tier, the larger one, to the GPU.

    Parameters
    ----------
    num_told
        Layers of such transfers that it copies before.
    """

    def __init__(self, num_told: int) -> None:
        self._copier = HostCopier()
        self._num_left = num_told
        self.num_lies = 0

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
        """Copy what is no transfer."""
        self.start(source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes)

    def start(
        self,
        source: Region,
        source_rows: Rows | None,
        target: Region,
        target_rows: Rows | None,
        *,
        num_rows: int,
        row_bytes: int,
    ) -> Copy:
        """Copy, or do not."""
        is_pool_to_pool = source_rows is not None and target_rows is not None
        if is_pool_to_pool and source.num_bytes > target.num_bytes:
            self._num_left -= 1
            if self._num_left == -1:
                self.num_lies += 1
                return DONE
        self._copier.copy(
            source, source_rows, target, target_rows, num_rows=num_rows, row_bytes=row_bytes
        )
        return DONE

    def drain(self) -> None:
        """Do nothing: all that is copied is copied at once."""

    def close(self) -> None:
        """Do nothing."""

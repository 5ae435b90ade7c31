"""What goes where in a write: runs of bytes, from an offset here to an offset there."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvsim.backends.transports.ports import MAX_PIECES, PieceError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

Offsets: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """Runs of bytes: piece i is `num_bytes[i]` bytes, from `sources[i]` to `targets[i]`.

    Offsets count from the start of the region of each side. Targets do not overlap.

    Parameters
    ----------
    sources, targets, num_bytes
        int64 arrays of one length.

    Raises
    ------
    PieceError
        If the three differ in length, a value is negative, or there are more than `MAX_PIECES`.
    """

    sources: Offsets
    targets: Offsets
    num_bytes: Offsets

    def __post_init__(self) -> None:
        lengths = len(self.sources), len(self.targets), len(self.num_bytes)
        if len(set(lengths)) != 1:
            raise PieceError(
                f"a write has {lengths[0]} source offsets, {lengths[1]} target offsets and"
                f" {lengths[2]} lengths: they must be as many"
            )
        if lengths[0] > MAX_PIECES:
            raise PieceError(f"a write has at most {MAX_PIECES} pieces, not {lengths[0]}")
        for name in ("sources", "targets", "num_bytes"):
            column = getattr(self, name)
            if len(column) and column.min() < 0:
                # Also a block id of -1 ("cached there already") that was taken for a block.
                raise PieceError(f"{name} of a write are 0 or more, not {column.min()}")

    def __len__(self) -> int:
        """Return the number of pieces."""
        return len(self.sources)

    def __iter__(self) -> Iterator[tuple[int, int, int]]:
        """Yield (source offset, target offset, number of bytes) of each piece."""
        columns = (self.sources.tolist(), self.targets.tolist(), self.num_bytes.tolist())
        return zip(*columns, strict=True)

    @property
    def total_bytes(self) -> int:
        """Bytes of all pieces."""
        return int(self.num_bytes.sum())

    @classmethod
    def of(cls, pieces: Iterable[tuple[int, int, int]]) -> Pieces:
        """Return pieces from (source offset, target offset, number of bytes) of each."""
        table = np.array(list(pieces), dtype=np.int64).reshape(-1, 3)
        return cls(table[:, 0].copy(), table[:, 1].copy(), table[:, 2].copy())

    @classmethod
    def strided(
        cls,
        *,
        first_source: int,
        source_stride: int,
        first_target: int,
        target_stride: int,
        num_pieces: int,
        piece_bytes: int,
    ) -> Pieces:
        """Return equal pieces at even distances, as of one head in many blocks."""
        steps = np.arange(num_pieces, dtype=np.int64)
        return cls(
            first_source + steps * source_stride,
            first_target + steps * target_stride,
            np.full(num_pieces, piece_bytes, dtype=np.int64),
        )

    def check_within(self, source_bytes: int, target_bytes: int) -> None:
        """Raise `PieceError` if a piece reaches beyond a region of this length."""
        for side, offsets, limit in (
            ("source", self.sources, source_bytes),
            ("target", self.targets, target_bytes),
        ):
            # Not offset + length > limit, which can overflow.
            beyond = (offsets > limit) | (self.num_bytes > limit - offsets)
            if beyond.any():
                index = int(beyond.argmax())
                raise PieceError(
                    f"piece {index} of a write is {self.num_bytes[index]} bytes from"
                    f" {offsets[index]} on, and its {side} has {limit} bytes"
                )

    def merged(self) -> Pieces:
        """Return the same bytes as few pieces: neighbours on both sides become one.

        Pieces are few and long on the medium where the layout lets them; empty ones are dropped.
        """
        keep = self.num_bytes > 0
        sources, targets, lengths = self.sources[keep], self.targets[keep], self.num_bytes[keep]
        if len(sources) < 2:
            return Pieces(sources, targets, lengths)
        ends_meet = (sources[:-1] + lengths[:-1] == sources[1:]) & (
            targets[:-1] + lengths[:-1] == targets[1:]
        )
        first = np.flatnonzero(np.concatenate(([True], ~ends_meet)))
        return Pieces(sources[first], targets[first], np.add.reduceat(lengths, first))

    def split(self, max_bytes: int) -> Iterator[Pieces]:
        """Yield the same bytes in order, in parts of at most `max_bytes` bytes."""
        part: list[tuple[int, int, int]] = []
        room = max_bytes
        for source, target, length in self:
            done = 0
            while done < length:
                step = min(room, length - done)
                part.append((source + done, target + done, step))
                done += step
                room -= step
                if not room:
                    yield Pieces.of(part)
                    part, room = [], max_bytes
        if part:
            yield Pieces.of(part)

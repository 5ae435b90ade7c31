"""What a transport is: the contract, its values, and what is told about its writes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeAlias

from kvsim.backends.region import MemoryKind
from kvsim.errors import ConfigError, KvsimError, MisuseError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kvsim.backends.region import Region
    from kvsim.backends.transports.pieces import Pieces

KEY_BYTES: Final = 32
"""Length of the key of a run: as many random bits as its MAC has."""

MAX_TAG_BYTES: Final = 256
"""Longest notification: (request, attempt, layer, rank) and room to spare."""

MAX_DESCRIPTION_BYTES: Final = 1 << 16
"""Longest description. NIXL's metadata is the largest of its parts, a few hundred bytes."""

MAX_PIECES: Final = 1 << 20
"""Most pieces of one write: a layer of a long prompt, cut by token and head."""


class PeerId(NamedTuple):
    """One rank of one instance: who an endpoint belongs to."""

    instance: int
    rank: int

    def __str__(self) -> str:
        """Return the name that messages use."""
        return f"rank {self.rank} of instance {self.instance}"


class Reason(StrEnum):
    """Why a write or a connection has failed."""

    CONNECT = "connect"
    """There is no connection to the peer, or none came to be."""
    WRITE = "write"
    """The medium or the peer refused it."""
    TIMEOUT = "timeout"
    """It was not done by its deadline."""
    PEER_LOST = "peer lost"
    """The connection broke while it was under way: the peer has died, closed, or left."""
    CANCELLED = "cancelled"
    """It was to be."""


class Connected(NamedTuple):
    """Writes to a peer can go."""

    peer: PeerId


class ConnectFailed(NamedTuple):
    """No connection to a peer came to be. `connect` tries again."""

    peer: PeerId
    reason: Reason
    detail: str


class WriteDone(NamedTuple):
    """The bytes of a write are in the peer's memory, and the peer's endpoint has its tag."""

    write_id: int


class WriteFailed(NamedTuple):
    """A write has failed: some, all or none of its bytes may be in the peer's memory.

    `is_settled`: whether it is also over; if not, `WriteSettled` comes later.
    """

    write_id: int
    reason: Reason
    detail: str
    is_settled: bool


class WriteSettled(NamedTuple):
    """A write that had failed is over: its source is read no more (see `Capabilities`)."""

    write_id: int


class Arrived(NamedTuple):
    """A write of a peer is in this endpoint's memory, and this is the tag that it carried.

    It may be one that the peer has given up meanwhile, at its deadline: tags that name the attempt
    tell (see `kvsim.backends.transports.tags`).
    """

    peer: PeerId
    tag: bytes


class PeerLost(NamedTuple):
    """A connection that had come to be is no more, whichever side had made it."""

    peer: PeerId
    detail: str


Event: TypeAlias = (
    Connected | ConnectFailed | WriteDone | WriteFailed | WriteSettled | Arrived | PeerLost
)


class TransportError(KvsimError, RuntimeError):
    """A medium that failed as a whole: the endpoint is of no use any more."""


class PieceError(MisuseError):
    """A write that reaches beyond the memory of one of the two sides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What a transport can do. Declared, never probed.

    Parameters
    ----------
    memory
        Kinds of memory that it moves.
    needs_memory_file
        Whether host memory must be a `MemoryFile`, so that peers can map it.
    crosses_hosts
        Whether the two ends may be on two machines.
    settles_target
        Whether a write that is settled writes nothing any more. If not, its bytes may still
        arrive until the connection is lost, or the peer is: its target stays quarantined.
    writes_past_frozen
        Whether a write without a tag is done although the peer stands still.
    encrypts
        Whether all bytes can be read by the two ends only.
    """

    memory: frozenset[MemoryKind] = frozenset({MemoryKind.HOST})
    needs_memory_file: bool = False
    crosses_hosts: bool = False
    settles_target: bool = True
    writes_past_frozen: bool = False
    encrypts: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointConfig:
    """What an endpoint is made from.

    Parameters
    ----------
    peer_id
        Who it belongs to.
    key
        Of the run: `KEY_BYTES` random bytes that its ranks have and nobody else. An endpoint
        listens to nobody who has not shown that it has the key.
    bind
        Address that it listens on. The default lets nobody in from another machine.
    connect_timeout_ns
        After which a connection has failed. The default is a hundred times what the slowest
        transport takes on a loaded machine.
    device
        Network device, where the medium chooses by device (`rdma`). "lo" is the loopback.
    clock
        Gives the time that deadlines are in, in nanoseconds.
    notify
        Called whenever the medium has something new for `poll`, in a thread of the endpoint: so
        that a worker that waits for its orders can wait for both. Not for deadlines, which whoever
        set them knows. It returns at once, and does not call the endpoint.

    Raises
    ------
    ConfigError
        If a value cannot be.
    """

    peer_id: PeerId
    key: bytes = field(repr=False)
    bind: str = "127.0.0.1"
    connect_timeout_ns: int = 5 * 10**9
    device: str = "lo"
    clock: Callable[[], int] = field(default=time.monotonic_ns, repr=False)
    notify: Callable[[], None] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if len(self.key) != KEY_BYTES:
            raise ConfigError(
                f"the key of a run has {KEY_BYTES} bytes, not {len(self.key)}:"
                f" make one with secrets.token_bytes({KEY_BYTES})"
            )
        if min(self.peer_id) < 0:
            raise ConfigError(f"instance and rank count from 0, not {self.peer_id}")
        if self.connect_timeout_ns <= 0:
            raise ConfigError(f"connect_timeout_ns must be positive, not {self.connect_timeout_ns}")


class Transport(Protocol):
    """An endpoint: the end of a transport that belongs to one rank of one instance.

    It has one piece of memory. What it sends is read from there, and what peers send is written
    there, one-sided: nobody here takes part. All calls come from one thread, and none of them
    blocks except `register` and `close`, which take as long as the medium does to begin and to
    end: what else can block is done elsewhere, and told by `poll`.

    Every write has one end, `WriteDone` or `WriteFailed`, and a failed one is settled once. Ends
    come in any order. A tag comes after the bytes of its write, never before. A write that ended
    well stays so; and one that failed is not done later, whatever is heard of it.

    What happens to one peer does not touch the others, nor later attempts at the same peer: a new
    `connect` begins anew, and nothing heard of an earlier connection counts for it.

    Bytes move between the calls. But `poll` is what tells of deadlines, and what lets a write go
    that waited for its connection or behind a flush: whoever has such writes polls.
    """

    @property
    def capabilities(self) -> Capabilities:
        """What it can do."""

    def register(self, region: Region, *, memory_file: int | None = None) -> bytes:
        """Let peers write into `region`, and return the description that they connect with.

        Called once, first. The region stays where it is until `close` has returned.

        Parameters
        ----------
        region
            The memory.
        memory_file
            Descriptor of the file that `region` is a mapping of, from its start (see
            `Capabilities.needs_memory_file`); it stays the caller's.

        Returns
        -------
        bytes
            At most `MAX_DESCRIPTION_BYTES`, for the control plane. It holds no secret.

        Raises
        ------
        ConfigError
            If the transport cannot move memory of this kind.
        MisuseError
            If a region is registered already, or the endpoint is closed.
        TransportError
            If the medium cannot be had.
        """

    def connect(self, peer: PeerId, description: bytes) -> None:
        """Ask for a connection to a peer: `Connected` or `ConnectFailed` follows, once.

        Connected already with this description: `Connected` follows, and nothing else happens.
        Under way already: the one answer is for both calls. With another description, the peer
        has started anew: what was under way to the old one has lost its peer.

        Raises
        ------
        ConfigError
            If the description is not one of this transport, or of another peer.
        MisuseError
            If nothing is registered, or the endpoint is closed.
        """

    def write(
        self,
        peer: PeerId,
        write_id: int,
        pieces: Pieces,
        *,
        deadline_at: int,
        tag: bytes | None = None,
    ) -> None:
        """Ask for bytes of this region to be put into the peer's: one end follows.

        With no bytes and no tag it is done at once, also if the peer is not connected. While the
        connection is under way, it waits for it; with none, it fails (`Reason.CONNECT`).

        Parameters
        ----------
        peer
            To whom.
        write_id
            Larger than that of any write before, so that it is new.
        pieces
            What goes where. The source stays as it is until the write is done or settled.
        deadline_at
            When it fails if it is not done, by the clock of the configuration.
        tag
            For the peer's `poll`, after the bytes: at most `MAX_TAG_BYTES`. It may go without
            bytes.

        Raises
        ------
        PieceError
            If a piece reaches beyond one of the regions. Nothing has been written.
        MisuseError
            If the id may not be new, the tag is too long, nothing is registered, or the endpoint
            is closed. Nothing has been written.
        """

    def cancel(self, write_id: int) -> None:
        """End a write early: it fails (`Reason.CANCELLED`), unless it has ended.

        Ids of writes that have ended, or that never were, are taken in silence: the end may be on
        its way.
        """

    def flush(self, peer: PeerId) -> None:
        """Hold later writes to `peer` back until every earlier one has ended.

        So the tag of a later write comes after the bytes of all earlier ones that ended well.
        Without it, writes may overtake each other. It has no event of its own.
        """

    def disconnect(self, peer: PeerId) -> None:
        """Give up the connection to a peer: its writes fail (`Reason.PEER_LOST`)."""

    def poll(self, timeout_ns: int = 0) -> Sequence[Event]:
        """Return what has happened since the last call, in order; wait for it up to `timeout_ns`.

        Raises
        ------
        TransportError
            If the medium failed as a whole.
        """

    def close(self) -> None:
        """Give everything up: no thread, process, socket, file or memory is left.

        Writes that have not ended have no end. May be called again, and at any time.
        """

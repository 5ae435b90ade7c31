"""Ranks as processes of their own: the same `RankWorker`, behind a channel."""

from __future__ import annotations

from collections import deque
from contextlib import ExitStack, suppress
from queue import Empty
from time import monotonic
from typing import TYPE_CHECKING, Final

from kvsim.backends.control import ChannelClosedError, ChannelError, sleep_on
from kvsim.backends.paddle.orders import Close, Forget, RankLost
from kvsim.backends.paddle.wire import (
    BeginMessage,
    DoneMessage,
    LeftMessage,
    PingMessage,
    PongMessage,
    ReadyMessage,
    RefusedMessage,
    done_of,
    order_message,
    plan_message,
)
from kvsim.errors import ConfigError, TransferError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.backends.control import Channel
    from kvsim.backends.paddle.allotment import RankPlan
    from kvsim.backends.paddle.backend import WallClock
    from kvsim.backends.paddle.crew import WorkerCrew, WorkerProcess
    from kvsim.backends.paddle.orders import Acknowledgement, Order
    from kvsim.backends.paddle.wire import FromWorker

CLOSE_S: Final = 5.0
"""How long a worker has to let its pools go, before it is killed."""

_READY_S: Final = 120.0  # beside the time for each GiB
_READY_S_PER_GIB: Final = 4.0  # to touch each page once: a tenth of what a machine does


class RankProcess:
    """A rank in a process of its own; a `Rank`.

    Parameters
    ----------
    index
        Its number among the ranks of the backend.
    worker
        The process, with its pools made.
    crew
        Where it comes from and goes back to.
    clock
        The controller's.
    encoder
        Turns an order into bytes, once for all ranks.

    Attributes
    ----------
    is_lost
        Whether it is not to be heard any more.
    has_news
        Whether something is to be sent that cannot wait.
    heard_at, pinged_at
        When it was last heard of, by `time.monotonic`; and when it was last asked to say something,
        None if it has answered.
    """

    def __init__(
        self,
        index: int,
        worker: WorkerProcess,
        crew: WorkerCrew,
        *,
        clock: WallClock,
        encoder: OrderEncoder,
    ) -> None:
        self.index = index
        self.worker = worker
        self._crew = crew
        self._clock = clock
        self._encoder = encoder
        self._end_at = 0.0
        self._has_left = False
        self.is_lost = False
        self.has_news = False
        self.heard_at = monotonic()
        self.pinged_at: float | None = None

    @property
    def channel(self) -> Channel[FromWorker]:
        """The channel to it."""
        return self.worker.channel

    def tell(self, order: Order) -> None:
        """Put an order with those that go out together before the next wait."""
        if not self.is_lost:
            self.channel.post(self._encoder.encode(order, self.channel))
            # Nobody waits for what is to be forgotten: it goes out with the next order, rather
            # than wake the worker for it (half of all frames).
            self.has_news = self.has_news or not isinstance(order, Forget)

    def start(self) -> None:
        """Begin to work."""
        self.channel.send(BeginMessage(self._clock.start_ns))
        with suppress(ChannelError):  # it has ended: the hub will see that
            self.channel.flush()

    def close(self) -> None:
        """Ask it to let its pools go."""
        self._end_at = monotonic() + CLOSE_S
        self.tell(Close())
        with suppress(ChannelError):
            self.channel.flush()

    def join(self) -> None:
        """Wait until it has let its pools go, and give the process back; kill it if it does not."""
        if self._has_left:
            return
        self._has_left = True
        if not self.is_lost and self._crew.keeps and self._hears_leave():
            self._crew.give_back(self.worker)
        else:
            # Its memory is its own and without a name, so nothing is left to be put in order.
            self.worker.close()

    def fence(self) -> None:
        """Kill it, and wait until it has ended: it touches no block from then on."""
        self.is_lost = True
        self.worker.child.kill()

    def _hears_leave(self) -> bool:
        try:
            while True:
                if any(isinstance(each, LeftMessage) for each in self.channel.receive()):
                    return True
                left_s = self._end_at - monotonic()
                if left_s <= 0:
                    return False
                writers = (self.channel,) if self.channel.has_unsent else ()
                sleep_on((self.channel,), writers, timeout_s=left_s)
                self.channel.flush()
        except ChannelError:
            return False


class OrderEncoder:
    """Turns an order into bytes once, though every rank is told it."""

    __slots__ = ("_encoded", "_order")

    def __init__(self) -> None:
        self._order: Order | None = None
        self._encoded = b""

    def encode(self, order: Order, channel: Channel[FromWorker]) -> bytes:
        """Return an order as it travels."""
        if order is not self._order:
            self._order, self._encoded = order, channel.encode(order_message(order))
        return self._encoded


class RankHub:
    """What all ranks say, as one inbox; it sleeps on their channels.

    Parameters
    ----------
    ranks
        The ranks.
    silence_s
        How long a rank may leave a ping unanswered, in seconds, before it counts as lost. One that
        has said nothing for as long is pinged, whether it has work or not.
    """

    def __init__(self, ranks: Sequence[RankProcess], *, silence_s: float) -> None:
        self._ranks = ranks
        self._silence_s = silence_s
        self._said: deque[Acknowledgement] = deque()

    def get(self, block: bool = True, timeout: float | None = None) -> Acknowledgement:  # noqa: FBT001, FBT002
        """Return what a rank says next; see `Inbox`. What they were told is sent first."""
        if self._said:
            return self._said.popleft()
        until = None if block and timeout is None else monotonic() + (timeout or 0.0)
        while True:
            for rank in self._ranks:
                if not rank.is_lost:
                    self._exchange(rank)
            if self._said:
                return self._said.popleft()
            now = monotonic()
            if until is not None and now >= until:
                raise Empty
            times = [self._listen_until(rank, now) for rank in self._ranks if not rank.is_lost]
            if self._said:
                continue
            if until is not None:
                times.append(until)
            hearing = [rank.channel for rank in self._ranks if not rank.is_lost]
            writers = [rank.channel for rank in self._ranks if rank.has_news and not rank.is_lost]
            sleep_on(hearing, writers, timeout_s=max(0.0, min(times) - now) if times else None)

    def _exchange(self, rank: RankProcess) -> None:
        """Send what waits for a rank, and take what it has said; never waits."""
        try:
            if rank.has_news:
                rank.channel.flush()
                rank.has_news = rank.channel.has_unsent
            for message in rank.channel.receive():
                rank.heard_at, rank.pinged_at = monotonic(), None
                self._take(rank, message)
        except ChannelClosedError:
            self._lose(rank, rank.worker.why_gone())
        except ChannelError as error:
            self._lose(rank, f"{rank.worker} cannot be understood: {error}")

    def _take(self, rank: RankProcess, message: FromWorker) -> None:
        if isinstance(message, DoneMessage):
            if message.rank != rank.index:
                raise ChannelError(f"it speaks for rank {message.rank}")
            self._said.append(done_of(message))
        elif not isinstance(message, PongMessage):
            raise ChannelError(f"a {type(message).__name__} in the middle of the work")

    def _listen_until(self, rank: RankProcess, now: float) -> float:
        """Ping a rank that is silent, or give it up; return when to look again."""
        if rank.pinged_at is not None:
            if now >= rank.pinged_at + self._silence_s:
                self._lose(
                    rank,
                    f"{rank.worker} has not answered for {self._silence_s:g} s: it is frozen, or a"
                    " copy takes longer than that",
                )
            return rank.pinged_at + self._silence_s
        if now < rank.heard_at + self._silence_s:
            return rank.heard_at + self._silence_s
        rank.pinged_at = now
        rank.channel.send(PingMessage())
        rank.has_news = True
        return now + self._silence_s

    def _lose(self, rank: RankProcess, reason: str) -> None:
        rank.is_lost = True
        self._said.append(RankLost(rank.index, reason))


def hire_ranks(crew: WorkerCrew, plans: Sequence[RankPlan]) -> list[WorkerProcess]:
    """Return a worker for each plan, with its pools made.

    Raises
    ------
    ConfigError
        If the pools cannot be made.
    TransferError
        If a worker ends, is late, or makes other pools.
    """
    workers = crew.hire(len(plans))
    with ExitStack() as undo:
        for worker in workers:
            undo.callback(worker.close)
        for index, (worker, plan) in enumerate(zip(workers, plans, strict=True)):
            worker.name = str(plan.worker)
            worker.channel.send(plan_message(index, plan))
        num_bytes = sum(
            pool.num_blocks * plan.shape.block_bytes for plan in plans for pool in plan.pools
        )
        until = monotonic() + _READY_S + _READY_S_PER_GIB * num_bytes / 2**30
        for worker, plan in zip(workers, plans, strict=True):
            _await_ready(workers, worker, plan, until)
        undo.pop_all()
    return workers


def _await_ready(
    workers: Sequence[WorkerProcess], worker: WorkerProcess, plan: RankPlan, until: float
) -> None:
    while True:
        try:
            for each in workers:
                each.channel.flush()
            messages = worker.channel.receive()
        except ChannelClosedError as error:
            raise TransferError(f"{worker.why_gone()}; it was making its pools") from error
        if messages:
            break
        left_s = until - monotonic()
        if left_s <= 0:
            raise TransferError(f"{worker} has not made its pools in time")
        writers = [each.channel for each in workers if each.channel.has_unsent]
        sleep_on((worker.channel,), writers, timeout_s=left_s)
    (said,) = messages if len(messages) == 1 else (None,)
    if isinstance(said, RefusedMessage):
        raise ConfigError(f"{plan.worker}: {said.reason}")
    wanted = {pool.tier: pool.num_blocks for pool in plan.pools}
    if not isinstance(said, ReadyMessage):
        raise TransferError(f"{worker} was to make its pools, and says {said!r}")
    if dict(said.num_blocks) != wanted:
        raise TransferError(
            f"{worker} has made pools of {dict(said.num_blocks)} blocks by tier, not of {wanted}"
        )

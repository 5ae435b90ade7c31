"""A worker process: `python -m kvsim.backends.paddle.rank_main`, started by kvsim and not by hand.

It makes the pools it is told of, works as a `RankWorker` until told to close, lets the pools go and
waits for the next plan. It ends when the controller lets go of it, or dies.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from queue import Empty
from time import monotonic, monotonic_ns
from typing import TYPE_CHECKING, Final

from kvsim.backends.control import (
    Channel,
    ChannelClosedError,
    ChannelError,
    Codec,
    dial,
    sleep_on,
    take_invitation,
)
from kvsim.backends.paddle.allotment import make_memory
from kvsim.backends.paddle.backend import WallClock
from kvsim.backends.paddle.orders import RankDone
from kvsim.backends.paddle.wire import (
    BeginMessage,
    HelloMessage,
    LeftMessage,
    PingMessage,
    PlanMessage,
    PongMessage,
    ReadyMessage,
    RefusedMessage,
    ToWorker,
    done_message,
    order_of,
    plan_of,
)
from kvsim.backends.paddle.worker import RankWorker
from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.backends.paddle.allotment import RankPlan
    from kvsim.backends.paddle.memory import RankMemory
    from kvsim.backends.paddle.orders import Acknowledgement, Order
    from kvsim.backends.paddle.wire import OrderMessage

_LOOK_S: Final = 100e-6
"""Between two pieces of work: each look at the socket costs a tenth of that."""


class Port:
    """A worker's end of its channel: where its orders come from, and its acknowledgements go.

    Parameters
    ----------
    channel
        To the controller.
    """

    def __init__(self, channel: Channel[ToWorker]) -> None:
        self.channel = channel
        self._messages: deque[PlanMessage | BeginMessage | OrderMessage] = deque()
        self._look_at = 0.0

    def get(self, block: bool = True, timeout: float | None = None) -> Order:  # noqa: FBT001, FBT002
        """Return the next order; see `Inbox`. What was told before is sent first."""
        message = self.next_message(None if block and timeout is None else (timeout or 0.0))
        if message is None:
            raise Empty
        if isinstance(message, PlanMessage | BeginMessage):
            raise ChannelError(f"a {type(message).__name__} in the middle of the work")
        return order_of(message)

    def tell(self, said: Acknowledgement) -> None:
        """Take an acknowledgement; it is sent before the next wait."""
        if isinstance(said, RankDone):
            self.channel.send(done_message(said))

    def next_message(
        self, timeout_s: float | None = None
    ) -> PlanMessage | BeginMessage | OrderMessage | None:
        """Return the next message that is no ping; None if none has come in `timeout_s` seconds.

        Raises
        ------
        ChannelClosedError
            If the controller has let go.
        """
        if self._messages:
            return self._messages.popleft()
        until = None if timeout_s is None else monotonic() + timeout_s
        if timeout_s == 0 and monotonic() < self._look_at and not self.channel.has_unsent:
            return None
        while True:
            self._receive()
            self._look_at = monotonic() + _LOOK_S
            self.channel.flush()
            if self._messages:
                return self._messages.popleft()
            left_s = None if until is None else until - monotonic()
            if left_s is not None and left_s <= 0:
                return None
            writers = (self.channel,) if self.channel.has_unsent else ()
            sleep_on((self.channel,), writers, timeout_s=left_s)

    def _receive(self) -> None:
        for message in self.channel.receive():
            if isinstance(message, PingMessage):
                self.channel.send(PongMessage())
            else:
                self._messages.append(message)


def serve(new_memory: Callable[[RankPlan], RankMemory] = make_memory) -> None:
    """Work for the controller that started this process until it lets go.

    Parameters
    ----------
    new_memory
        Makes the pools.
    """
    invitation = take_invitation()
    codec: Codec[ToWorker] = Codec(ToWorker)
    port = Port(dial(invitation.address, invitation.key, codec))
    port.channel.send(HelloMessage(invitation.index, monotonic_ns()))
    try:
        while True:
            _work(port, new_memory)
    except ChannelClosedError:
        return


def _work(port: Port, new_memory: Callable[[RankPlan], RankMemory]) -> None:
    """Work for one backend: from its plan to its close."""
    message = port.next_message()
    if not isinstance(message, PlanMessage):
        raise ChannelError(f"a plan was to come, not a {type(message).__name__}")
    plan = plan_of(message)
    try:
        memory = new_memory(plan)
    except (UserError, MemoryError) as error:
        port.channel.send(RefusedMessage(_reason(error)))
        return
    num_blocks = tuple((place.tier, num) for place, num in memory.num_blocks.items())
    port.channel.send(ReadyMessage(num_blocks))
    begin = port.next_message()
    if isinstance(begin, BeginMessage):
        RankWorker(
            rank=message.index,
            memory=memory,
            clock=WallClock(begin.start_ns),
            inbox=port,
            tell=port.tell,
        ).run()
    del memory
    port.channel.send(LeftMessage())


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"the host does not give the memory for its pools ({error or 'MemoryError'})"
    return str(error)


def main() -> int:
    """Work; return the exit code."""
    try:
        serve()
    except ChannelError as error:
        sys.stderr.write(f"kvsim worker: {error}\n")
        return 1
    return 0


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # what Paddle does at its end takes longer than to let the memory go

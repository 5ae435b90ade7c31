"""The decoding members of an instance: who finishes and who needs blocks at which step."""

from __future__ import annotations

from heapq import heappop, heappush
from typing import TYPE_CHECKING

from kvsim.core.ops import Member
from kvsim.core.sequence import Status

if TYPE_CHECKING:
    from kvsim.core.sequence import Sequence
    from kvsim.types import BlockId, RequestId


class DecodeBatch:
    """Decoding sequences, kept so that a step costs nothing per member.

    All members advance together, so a member's end and its next block are fixed step numbers:
    two heaps give the next of each. Entries carry the ticket of their sequence and are stale once
    that has changed. Changes since the last Forward are collected as its difference.

    Attributes
    ----------
    num_steps
        Steps done since the start.
    num_members, num_context_tokens
        Decoding sequences, and the tokens they attend to in the next step, together.
    """

    __slots__ = (
        "_due",
        "_grown",
        "_grows",
        "_joined",
        "_left",
        "_num_tickets",
        "block_size",
        "num_context_tokens",
        "num_members",
        "num_steps",
    )

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.num_steps = 0
        self.num_members = 0
        self.num_context_tokens = 0
        self._num_tickets = 0
        self._due: list[tuple[int, int, Sequence]] = []
        self._grows: list[tuple[int, int, Sequence]] = []
        self._joined: dict[RequestId, Sequence] = {}
        self._left: list[RequestId] = []
        self._grown: dict[RequestId, list[BlockId]] = {}

    def join(self, sequence: Sequence) -> None:
        """Add a sequence that has made a token and needs more."""
        self._num_tickets += 1
        sequence.ticket = self._num_tickets
        sequence.status = Status.DECODING
        left = sequence.request.num_output_tokens - sequence.num_made
        sequence.due_step = self.num_steps + left
        heappush(self._due, (sequence.due_step, sequence.ticket, sequence))
        self._push_grow(sequence, sequence.num_made)
        self.num_members += 1
        self.num_context_tokens += sequence.request.num_input_tokens + sequence.num_made
        self._joined[sequence.request.request_id] = sequence

    def leave(self, sequence: Sequence) -> None:
        """Remove a member; its `num_made` is what it has made by now."""
        request = sequence.request
        sequence.num_made = request.num_output_tokens - (sequence.due_step - self.num_steps)
        sequence.ticket = 0
        self.num_members -= 1
        self.num_context_tokens -= request.num_input_tokens + sequence.num_made
        request_id = request.request_id
        if request_id in self._joined:
            del self._joined[request_id]
        else:
            self._left.append(request_id)
        if self._grown:
            self._grown.pop(request_id, None)

    def num_made(self, sequence: Sequence) -> int:
        """Return how many output tokens a member has made after the steps done."""
        return sequence.request.num_output_tokens - (sequence.due_step - self.num_steps)

    def advance(self, num_steps: int) -> list[Sequence]:
        """Count finished steps; remove and return the members that are through."""
        self.num_steps += num_steps
        self.num_context_tokens += self.num_members * num_steps
        finished: list[Sequence] = []
        due = self._due
        while due and due[0][0] <= self.num_steps:
            _, ticket, sequence = heappop(due)
            if sequence.ticket == ticket:
                self.leave(sequence)
                finished.append(sequence)
        return finished

    def num_steps_to_due(self) -> int:
        """Return how many steps the next member needs to its last token; 0 without members."""
        due = self._due
        while due and due[0][2].ticket != due[0][1]:
            heappop(due)
        return due[0][0] - self.num_steps if due else 0

    def must_grow(self, num_steps: int) -> bool:
        """Whether a member's table may be full before `num_steps` more steps are done."""
        grows = self._grows
        return bool(grows) and grows[0][0] < self.num_steps + num_steps

    def next_to_grow(self, num_steps: int) -> Sequence | None:
        """Return the first member whose table is full before `num_steps` more steps are done."""
        grows = self._grows
        while grows and grows[0][0] < self.num_steps + num_steps:
            _, ticket, sequence = grows[0]
            if sequence.ticket == ticket:
                return sequence
            heappop(grows)
        return None

    def num_steps_to_grow(self) -> int:
        """Return how many steps can be done before the member of `next_to_grow` is stuck."""
        return self._grows[0][0] - self.num_steps

    def grew(self, sequence: Sequence, block_ids: list[BlockId]) -> None:
        """Take note that the member of `next_to_grow` has got these blocks."""
        heappop(self._grows)
        self._push_grow(sequence, self.num_made(sequence))
        request_id = sequence.request.request_id
        if request_id not in self._joined:
            self._grown.setdefault(request_id, []).extend(block_ids)

    def take_difference(
        self,
    ) -> tuple[
        tuple[Member, ...], tuple[RequestId, ...], tuple[tuple[RequestId, tuple[BlockId, ...]], ...]
    ]:
        """Return and forget (joined, left, grown) since the last Forward."""
        members: tuple[Member, ...] = ()
        gone: tuple[RequestId, ...] = ()
        more: tuple[tuple[RequestId, tuple[BlockId, ...]], ...] = ()
        if self._joined:
            members = tuple(map(self._member, self._joined.values()))
            self._joined.clear()
        if self._left:
            gone = tuple(self._left)
            self._left.clear()
        if self._grown:
            more = tuple((request_id, tuple(ids)) for request_id, ids in self._grown.items())
            self._grown.clear()
        return members, gone, more

    def _member(self, sequence: Sequence) -> Member:
        attempt = sequence.admitted
        return Member(
            sequence.request.request_id,
            attempt.number,
            sequence.request.num_input_tokens + self.num_made(sequence) - 1,
            tuple(attempt.table),
        )

    def _push_grow(self, sequence: Sequence, num_made: int) -> None:
        """Note the step before which the sequence needs a block, if it ever does.

        A step writes the KV of the last token made, at position `base + num_made - 1`: it runs
        while `num_made` tokens fit. The last step has made all but one of them.
        """
        num_fitting = len(sequence.admitted.table) * self.block_size - sequence.layout.base
        if num_fitting < sequence.request.num_output_tokens - 1:
            at = self.num_steps + num_fitting - num_made + 1
            heappush(self._grows, (at, sequence.ticket, sequence))

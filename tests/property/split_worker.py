"""What the ops of several instances tell their workers, and whether that is enough and right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsim.config import Role
from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Transfer
from tests.property.memory import TIERS_AN_INSTANCE, Memory, OpenOp, Piece, blocks_written

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kvsim.core.ops import Answer, Command, Member, Slice
    from kvsim.types import BlockId, OpId, Request, RequestId


@dataclass(slots=True)
class Decoding:
    """A decoding request, known from the differences alone."""

    attempt: int
    num_kv: int
    table: list[BlockId]


@dataclass(slots=True)
class Sending:
    """What one attempt of a request sends."""

    ops: set[OpId] = field(default_factory=set)
    done: set[OpId] = field(default_factory=set)
    source_ids: list[BlockId] = field(default_factory=list)
    target_ids: list[BlockId] = field(default_factory=list)


class SplitWorker:
    """Follows every op from its issue to its end, and what it does to the memory.

    Attributes
    ----------
    tokens_made
        Output tokens of each request, from the Forwards alone.
    sends
        By (request, attempt).
    num_bad
        Ops that did not end DONE, runs cancelled before their first step not counted.
    """

    def __init__(
        self, requests: Mapping[RequestId, Request], block_size: int, roles: Mapping[int, Role]
    ) -> None:
        self._requests = requests
        self._roles = roles
        self._block_size = block_size
        self._members: dict[int, dict[RequestId, Decoding]] = {number: {} for number in roles}
        self._forwards: dict[int, OpenOp] = {}
        self._instance_of: dict[OpId, int] = {}
        self._cancelled_runs: set[OpId] = set()
        self.memory = Memory()
        self.num_kv: dict[tuple[int, RequestId, int], int] = {}
        self.tokens_made = dict.fromkeys(requests, 0)
        self.sends: dict[tuple[RequestId, int], Sending] = {}
        self.num_bad = 0
        self.num_sends = 0
        self.num_shared_sends = 0

    # -- commands

    def submit(self, command: Command) -> None:
        """Take a command that is issued now."""
        if isinstance(command, Forward):
            self._submit_forward(command)
        elif isinstance(command, Transfer):
            if command.source.instance != command.target.instance:
                self._submit_send(command)
            self.memory.start_transfer(command)
        else:
            assert isinstance(command, Cancel)
            assert command.op_id not in self._cancelled_runs, "a run is cancelled twice"
            self._cancelled_runs.add(command.op_id)

    def _submit_send(self, send: Transfer) -> None:
        source, target = send.source, send.target
        assert source.tier == target.tier == 0
        assert self._roles[source.instance] is Role.PREFILL
        assert self._roles[target.instance] is Role.DECODE
        ((request_id, attempt),) = send.attempts
        sending = self.sends.setdefault((request_id, attempt), Sending())
        sending.ops.add(send.op_id)
        assert not set(send.target_ids) & set(sending.target_ids), "a block is sent twice"
        assert not set(send.source_ids) & set(sending.source_ids), "a block is sent twice"
        sending.target_ids += send.target_ids
        sending.source_ids += send.source_ids
        self.num_sends += 1
        self.num_shared_sends += any(op.transfer is not None for op in self.memory.open.values())

    def _submit_forward(self, forward: Forward) -> None:
        number = forward.instance
        assert number not in self._forwards, "two Forwards at a time on one instance"
        self._take_difference(forward)
        members = self._members[number]
        assert forward.num_decodes == len(members)
        assert forward.context_tokens == sum(m.num_kv + 1 for m in members.values())
        assert forward.num_steps == 1 or not forward.prefill
        assert forward.prefill or members, "an empty Forward"
        if self._roles[number] is Role.DECODE:
            assert not forward.prefill, "a prompt is computed where it is only decoded"
        elif self._roles[number] is Role.PREFILL:
            assert not members, "decoding where prompts are computed"
        op = OpenOp(forward.op_id, set(), set(), after=forward.after, num_steps=forward.num_steps)
        op.pieces = [self._slice(piece, number) for piece in forward.prefill]
        op.pieces += [self._decode(i, number, forward.num_steps) for i in members]
        for piece in op.pieces:
            op.reads |= {(piece.place, block_id) for block_id in piece.table}
            writes = set(blocks_written(piece))
            assert op.writes.isdisjoint(writes), "two pieces of a Forward write the same block"
            op.writes |= writes
        self.memory.start(op)
        self._forwards[number] = op
        self._instance_of[op.op_id] = number

    def _take_difference(self, forward: Forward) -> None:
        members = self._members[forward.instance]
        for request_id in forward.left:
            del members[request_id]
        for joined in forward.joined:
            assert joined.request_id not in members, "joined twice"
            if self._roles[forward.instance] is Role.DECODE:
                self._check_start(joined)
            members[joined.request_id] = Decoding(
                joined.attempt, joined.num_tokens, list(joined.block_ids)
            )
        for request_id, block_ids in forward.grown:
            members[request_id].table += block_ids

    def _check_start(self, joined: Member) -> None:
        """Check that decode starts with all sends of the present attempt DONE, not before."""
        sending = self.sends.get((joined.request_id, joined.attempt), Sending())
        assert sending.ops == sending.done, "decode starts before all its sends are done"
        assert set(sending.target_ids) <= set(joined.block_ids) or sending.target_ids
        request = self._requests[joined.request_id]
        num_known = request.num_input_tokens + self.tokens_made[joined.request_id]
        assert joined.num_tokens == num_known - 1, "the token made last has no KV yet"

    def _slice(self, piece: Slice, number: int) -> Piece:
        request_id = piece.request_id
        layout = self._layout(request_id)
        assert piece.num_tokens > 0
        expected = self.num_kv[number, request_id, piece.attempt]
        assert piece.first_token == expected, "a slice does not begin where the last ended"
        end = piece.first_token + piece.num_tokens
        known = self._requests[request_id].num_input_tokens + self.tokens_made[request_id]
        assert end <= known
        assert len(piece.block_ids) == layout.num_blocks(end)
        return Piece(
            self._stub(request_id),
            piece.first_token,
            piece.num_tokens,
            table=piece.block_ids,
            writes=piece.writes,
            place=number * TIERS_AN_INSTANCE,
        )

    def _decode(self, request_id: RequestId, number: int, num_steps: int) -> Piece:
        member, layout = self._members[number][request_id], self._layout(request_id)
        made = self.tokens_made[request_id]
        assert made + num_steps <= self._requests[request_id].num_output_tokens
        num_blocks = layout.num_blocks(member.num_kv + num_steps)
        assert num_blocks <= len(member.table) <= layout.num_most_blocks
        assert len(set(member.table)) == len(member.table)
        return Piece(
            self._stub(request_id),
            member.num_kv,
            num_steps,
            table=tuple(member.table[:num_blocks]),
            is_decode=True,
            place=number * TIERS_AN_INSTANCE,
        )

    def _layout(self, request_id: RequestId) -> BlockLayout:
        return BlockLayout(self._requests[request_id], self._block_size)

    def _stub(self, request_id: RequestId) -> Attempt:
        request = self._requests[request_id]
        layout = self._layout(request_id)
        return Attempt(request, number=0, layout=layout, num_made=0, num_wanted_blocks=0)

    # -- answers

    def in_order(self, answers: list[Answer]) -> list[Answer]:
        """Return answers of one instant with those that others wait for before these."""
        left = list(answers)
        ordered: list[Answer] = []
        while left:
            pending = {answer.op_id for answer in left}
            first = next(a for a in left if pending.isdisjoint(self.memory.open[a.op_id].after))
            left.remove(first)
            ordered.append(first)
        return ordered

    def take(self, answer: Answer) -> None:
        """Take the end of an op."""
        op = self.memory.open[answer.op_id]
        if not isinstance(answer, Completion):
            for address in op.writes:  # whatever it wrote in the end, nobody may want it
                self.memory.content.pop(address, None)
            self.memory.come_to_rest(answer.op_id)
            return
        outcome = answer.outcome
        self.num_bad += outcome not in {Outcome.DONE, Outcome.CANCELLED}
        if outcome is Outcome.TIMED_OUT and (op.pieces or op.after):
            # What had not come yet it may read as garbage: its result is lost anyhow.
            for other in self.memory.open.values():
                if other is not op:
                    op.reads -= other.writes
        self.memory.finish(answer.op_id, outcome, answer.steps_done)
        if outcome is not Outcome.DONE:
            self._doom(answer.op_id)
        for sending in self.sends.values():
            if answer.op_id in sending.ops and outcome is Outcome.DONE:
                sending.done.add(answer.op_id)
        if op.pieces:
            number = self._instance_of.pop(answer.op_id)
            del self._forwards[number]
            if outcome is Outcome.DONE:
                self._advance(op, number, answer.steps_done)

    def _doom(self, op_id: OpId) -> None:
        """Let those that wait for an op that did not end well read what they like.

        They end FAILED, as the contract says, whatever it is. What they write is theirs still.
        """
        for other in self.memory.open.values():
            if op_id in other.after and other.reads:
                other.reads = set()
                self._doom(other.op_id)

    def _advance(self, op: OpenOp, number: int, steps_done: int) -> None:
        for piece in op.pieces:
            request = piece.attempt.request
            request_id = request.request_id
            if piece.is_decode:
                self._members[number][request_id].num_kv += steps_done
                self.tokens_made[request_id] += steps_done
                continue
            end = piece.first_token + piece.num_tokens
            for (at, who, attempt), _ in list(self.num_kv.items()):
                if (at, who) == (number, request_id):
                    self.num_kv[at, who, attempt] = end
            if end == request.num_input_tokens + self.tokens_made[request_id]:
                self.tokens_made[request_id] += 1

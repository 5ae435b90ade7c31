"""What the ops tell a worker, and whether that is enough and right."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvsim.core.ops import Cancel, Completion, Forward, Outcome, Transfer
from tests.property.memory import Memory, OpenOp, Piece, blocks_written

if TYPE_CHECKING:
    from kvsim.core.ops import Answer, Command, Slice
    from kvsim.types import BlockId, OpId, RequestId
    from tests.property.clients import Client, Story


@dataclass(slots=True)
class Member:
    """A decoding request, known from the differences alone."""

    num_kv: int
    table: list[BlockId] = field(default_factory=list)


class Worker:
    """Follows every op from its issue to its end, and what it does to the memory.

    Attributes
    ----------
    forward
        The Forward without a Completion, if there is one.
    cancelled_runs
        Forwards that a Cancel has named.
    num_bad
        Ops that did not end DONE, runs cancelled before their first step not counted.
    """

    def __init__(self, story: Story, clients: dict[RequestId, Client]) -> None:
        self._config = story.scheduler
        self._clients = clients
        self._members: dict[RequestId, Member] = {}
        self.memory = Memory()
        self.forward: OpenOp | None = None
        self.cancelled_runs: set[OpId] = set()
        self.num_bad = 0

    def is_busy_with(self, client: Client) -> bool:
        """Whether the running Forward computes for this client."""
        pieces = [] if self.forward is None else self.forward.pieces
        return any(piece.attempt.request is client.request for piece in pieces)

    def is_forward(self, answer: Answer) -> bool:
        """Whether this is the end of the running Forward."""
        return self.forward is not None and answer.op_id == self.forward.op_id

    # -- commands

    def submit(self, command: Command, now: int) -> None:
        """Take a command that is issued now."""
        if isinstance(command, Forward):
            self._submit_forward(command, now)
        elif isinstance(command, Transfer):
            timeout_ns = self._config.transfer_timeout_ns
            assert command.deadline_at == (None if timeout_ns is None else now + timeout_ns)
            self.memory.start_transfer(command)
        else:
            self._submit_cancel(command)

    def _submit_cancel(self, command: Cancel) -> None:
        assert self.forward is not None
        assert command.op_id == self.forward.op_id
        assert self.forward.num_steps > 1, "a Forward of one step is cancelled"
        assert command.op_id not in self.cancelled_runs, "a run is cancelled twice"
        self.cancelled_runs.add(command.op_id)

    def _submit_forward(self, forward: Forward, now: int) -> None:
        assert not any(op.pieces for op in self.memory.open.values()), "two Forwards at a time"
        self._take_difference(forward)
        assert forward.num_decodes == len(self._members)
        assert forward.context_tokens == sum(m.num_kv + 1 for m in self._members.values())
        assert forward.num_steps >= 1
        assert forward.num_steps == 1 or not forward.prefill
        assert forward.prefill or self._members, "an empty Forward"
        timeout_ns = self._config.forward_timeout_ns
        assert forward.deadline_at == (None if timeout_ns is None else now + timeout_ns)
        num_tokens = forward.num_decodes + sum(piece.num_tokens for piece in forward.prefill)
        assert num_tokens <= self._config.token_budget
        num_running = sum(client.attempt is not None for client in self._clients.values())
        assert num_running <= self._config.max_running
        op = OpenOp(forward.op_id, set(), set(), after=forward.after, num_steps=forward.num_steps)
        op.pieces = [self._slice(piece) for piece in forward.prefill]
        op.pieces += [self._decode(request_id, forward) for request_id in self._members]
        for piece in op.pieces:
            op.reads |= {(0, block_id) for block_id in piece.table}
            writes = set(blocks_written(piece))
            assert op.writes.isdisjoint(writes), "two pieces of a Forward write the same block"
            op.writes |= writes
        self.memory.start(op)
        self.forward = op

    def _take_difference(self, forward: Forward) -> None:
        members = self._members
        for request_id in forward.left:
            del members[request_id]
        for joined in forward.joined:
            assert joined.request_id not in members, "joined twice"
            assert joined.attempt == self._clients[joined.request_id].attempt
            members[joined.request_id] = Member(joined.num_tokens, list(joined.block_ids))
        for request_id, block_ids in forward.grown:
            assert block_ids, "grown by nothing"
            members[request_id].table += block_ids
        decoding = {i for i, client in self._clients.items() if client.is_decoding}
        assert decoding == set(members), f"{decoding} decode, and the worker has {set(members)}"

    def _slice(self, piece: Slice) -> Piece:
        client = self._clients[piece.request_id]
        assert piece.attempt == client.attempt
        assert piece.num_tokens > 0
        assert piece.first_token == client.num_kv, "a slice does not begin where the last ended"
        end = piece.first_token + piece.num_tokens
        assert end <= client.num_target
        assert len(piece.block_ids) == client.layout.num_blocks(end)
        assert len(set(piece.block_ids)) == len(piece.block_ids)
        return Piece(
            client.stub(),
            piece.first_token,
            piece.num_tokens,
            table=piece.block_ids,
            writes=piece.writes,
        )

    def _decode(self, request_id: RequestId, forward: Forward) -> Piece:
        client, member = self._clients[request_id], self._members[request_id]
        num_steps = forward.num_steps
        assert member.num_kv == client.num_kv
        assert client.num_made + num_steps <= client.request.num_output_tokens
        num_blocks = client.layout.num_blocks(member.num_kv + num_steps)
        assert num_blocks <= len(member.table) <= client.layout.num_most_blocks
        assert len(set(member.table)) == len(member.table)
        table = tuple(member.table[:num_blocks])
        return Piece(client.stub(), member.num_kv, num_steps, table=table, is_decode=True)

    # -- answers

    def take(self, answer: Answer) -> None:
        """Take the end of an op; of ops that end together, those waited for come first."""
        op = self.memory.open[answer.op_id]
        if not isinstance(answer, Completion):
            for address in op.writes:  # whatever it wrote in the end, nobody may want it
                self.memory.content.pop(address, None)
            self.memory.come_to_rest(answer.op_id)
            return
        outcome = answer.outcome
        self.num_bad += outcome not in {Outcome.DONE, Outcome.CANCELLED}
        if op.pieces and outcome is Outcome.TIMED_OUT:
            # What had not come yet it may read as garbage: its result is lost anyhow.
            for other in self.memory.open.values():
                op.reads -= other.writes
        self.memory.finish(answer.op_id, outcome, answer.steps_done)
        if op.pieces:
            self.forward = None
            if outcome is Outcome.DONE:
                self._advance(op, answer.steps_done)

    def _advance(self, op: OpenOp, steps_done: int) -> None:
        is_cut = op.op_id in self.cancelled_runs
        assert steps_done == op.num_steps or (is_cut and 0 < steps_done <= op.num_steps)
        for piece in op.pieces:
            client = self._clients[piece.attempt.request.request_id]
            if piece.is_decode:
                self._members[client.request.request_id].num_kv += steps_done
                client.num_kv += steps_done
                client.num_made += steps_done
            else:
                client.num_kv = piece.first_token + piece.num_tokens
                if client.num_kv == client.num_target:
                    client.num_made += 1
                    client.is_decoding = True

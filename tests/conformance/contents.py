"""A simulator that also keeps what each block holds, and checks all that is read."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from kvsim.core.ops import Completion, Forward, Outcome, Transfer
from tests.conformance.makers import make_simulator

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.ops import Answer, Command
    from kvsim.testing import BackendSpec

Address: TypeAlias = tuple[int, int, int]
"""(instance, tier, block id)."""


class _Member:
    """A decoding request, known from the differences alone."""

    def __init__(self, num_tokens: int, table: tuple[int, ...]) -> None:
        self.num_tokens = num_tokens
        self.table = list(table)


class _Piece(NamedTuple):
    """What a Forward reads and writes for one request: a prompt, or a decoding member."""

    request_id: int
    table: tuple[int, ...]
    first_token: int
    num_tokens: int
    member: _Member | None
    writes: bool


class ContentBackend:
    """A `kvsim.core.ports.Backend` on which ops that make no sense raise an AssertionError.

    A block holds a (request, token) pair in each slot. A block is written by one op only, except
    that each step of a decoding member adds one token.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._simulator = make_simulator(spec)
        self._held: dict[Address, dict[int, tuple[int, int]]] = {}
        self._taken: set[Address] = set()
        self._batches: dict[int, dict[int, _Member]] = {}
        self._transfers: dict[int, Transfer] = {}
        self._pieces: dict[int, tuple[int, list[_Piece]]] = {}

    def now(self) -> int:
        return self._simulator.now()

    def submit(self, command: Command) -> None:
        self._simulator.submit(command)
        if isinstance(command, Forward):
            self._take_forward(command)
        elif isinstance(command, Transfer):
            place = (command.target.instance, command.target.tier)
            self._take_blocks(*place, command.target_ids)
            self._transfers[command.op_id] = command

    def wait(self, until: int | None) -> Sequence[Answer]:
        answers = self._simulator.wait(until)
        for answer in answers:
            if isinstance(answer, Completion) and answer.outcome is Outcome.DONE:
                if answer.op_id in self._transfers:
                    self._copy(self._transfers[answer.op_id])
                else:
                    self._compute(*self._pieces[answer.op_id], answer.steps_done)
        return answers

    def close(self) -> None:
        self._simulator.close()

    def _take_blocks(self, instance: int, tier: int, block_ids: Sequence[int]) -> None:
        num_blocks = (self._spec.num_gpu_blocks, self._spec.num_cpu_blocks)[tier]
        assert all(0 <= block_id < num_blocks for block_id in block_ids)
        addresses = {(instance, tier, block_id) for block_id in block_ids}
        assert len(addresses) == len(block_ids)
        assert not addresses & self._taken, "a block is given to two ops"
        self._taken |= addresses

    def _take_forward(self, forward: Forward) -> None:
        instance = forward.instance
        batch = self._batches.setdefault(instance, {})
        for request_id in forward.left:
            del batch[request_id]
        for joined in forward.joined:
            assert joined.request_id not in batch, "joined twice"
            num_prompt_blocks = len(self._spec.requests[joined.request_id].block_keys)
            self._take_blocks(instance, 0, joined.block_ids[num_prompt_blocks:])
            batch[joined.request_id] = _Member(joined.num_tokens, joined.block_ids)
        for request_id, block_ids in forward.grown:
            self._take_blocks(instance, 0, block_ids)
            batch[request_id].table += block_ids
        assert forward.num_decodes == len(batch)
        assert forward.num_steps == 1 or not forward.prefill
        pieces: list[_Piece] = []
        for piece in forward.prefill:
            if piece.writes:
                self._take_blocks(instance, 0, piece.block_ids)
            first, num = piece.first_token, piece.num_tokens
            pieces.append(_Piece(piece.request_id, piece.block_ids, first, num, None, piece.writes))
        for request_id, member in batch.items():
            table = tuple(member.table)
            pieces.append(_Piece(request_id, table, 0, 0, member, writes=True))
        assert pieces, "an empty Forward"
        self._pieces[forward.op_id] = (instance, pieces)

    def _copy(self, transfer: Transfer) -> None:
        source, target = transfer.source, transfer.target
        for a, b in transfer.block_pairs:
            held = self._held.get((source.instance, source.tier, a))
            assert held, f"op {transfer.op_id} copied a block that holds nothing"
            self._held[target.instance, target.tier, b] = dict(held)

    def _compute(self, instance: int, pieces: list[_Piece], steps_done: int) -> None:
        size = self._spec.block_size
        for request_id, table, first_token, num_tokens, member, writes in pieces:
            first = first_token if member is None else member.num_tokens
            last = first + (num_tokens if member is None else steps_done)
            for token in range(last):
                held = self._held.setdefault((instance, 0, table[token // size]), {})
                if token < first or not writes:
                    assert held.get(token % size) == (request_id, token), "read what is not there"
                else:
                    held[token % size] = (request_id, token)
            if member is not None:
                member.num_tokens = last

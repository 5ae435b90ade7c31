"""Writes ops that make sense on real tensors: what is read was written, by one writer."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from kvsim.core.ops import Completion, Forward, Gate, Member, Outcome, Place, Slice, Transfer
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from kvsim.core.ops import Answer
    from kvsim.testing.backends.spec import BackendSpec
    from kvsim.types import BlockId, OpId, RequestId


class _Copy(NamedTuple):
    """Where a prompt's blocks are in a tier, and the op that writes them."""

    block_ids: tuple[BlockId, ...]
    writer: OpId


class _Member:
    """A decoding request: its table, the tokens that hold KV, and the ops that write them."""

    __slots__ = ("num_tokens", "prompt", "runs", "table")

    def __init__(self, num_tokens: int, prompt: _Copy) -> None:
        self.num_tokens = num_tokens
        self.prompt = prompt
        self.table = list(prompt.block_ids)
        self.runs: list[OpId] = []


class _Instance:
    """The books of one instance: fresh blocks, the prompts in each tier, and the batch."""

    __slots__ = ("batch", "num_taken", "prompts")

    def __init__(self) -> None:
        self.num_taken = [0, 0]
        self.prompts: tuple[dict[RequestId, _Copy], dict[RequestId, _Copy]] = ({}, {})
        self.batch: dict[RequestId, _Member] = {}


class Scenario:
    """Writes the ops of a test, in the order in which they are to be submitted.

    Every op writes fresh blocks only, and names in `after` the writers of what it reads unless
    they have ended DONE (tell it with `settle`). So ops may be submitted at any time, end in any
    way, and be lost: nothing is read that was not written, and nothing is written twice. The
    batch of an instance follows from the decoding requests that each Forward names.

    Parameters
    ----------
    spec
        Of the backend that will execute the ops.

    Raises
    ------
    MisuseError
        From any call that the spec has no room for, or that reads a prompt never written.
    """

    def __init__(self, spec: BackendSpec) -> None:
        self._spec = spec
        self._instances = [_Instance() for _ in range(spec.num_instances)]
        self._num_ops = 0
        self._num_requests = 0
        self._runs: dict[OpId, tuple[tuple[_Member, ...], int]] = {}
        self._done: set[OpId] = set()
        self._harmless: set[OpId] = set()

    @property
    def num_requests_left(self) -> int:
        """Requests that no op has named yet."""
        return len(self._spec.requests) - self._num_requests

    def prompts_in(self, *, instance: int = 0, tier: int = 0) -> list[RequestId]:
        """Return the requests whose prompts are in a tier, or on their way there."""
        return list(self._instances[instance].prompts[tier])

    def next_request(self) -> RequestId:
        """Return a request that no op has named yet."""
        if not self.num_requests_left:
            raise MisuseError(f"a scenario has {self._num_requests} requests and no more")
        self._num_requests += 1
        return self._num_requests - 1

    def prefill(
        self,
        *,
        request_id: RequestId | None = None,
        decoding: tuple[RequestId, ...] = (),
        instance: int = 0,
        after: tuple[OpId, ...] = (),
        gate: Gate = Gate.LAYER,
        deadline_at: int | None = None,
    ) -> Forward:
        """Return a Forward of one step that computes a prompt, of a request not named yet."""
        if request_id is None:
            request_id = self.next_request()
        prompt = self._spec.requests[request_id]
        block_ids = self._take(instance, 0, len(prompt.block_keys))
        piece = Slice(request_id, 0, 0, prompt.num_input_tokens, block_ids)
        forward = self._forward(instance, 1, (piece,), decoding, after, gate, deadline_at)
        self._instances[instance].prompts[0][request_id] = _Copy(block_ids, forward.op_id)
        return forward

    def reread(
        self,
        request_id: RequestId,
        *,
        instance: int = 0,
        after: tuple[OpId, ...] = (),
        gate: Gate = Gate.LAYER,
        deadline_at: int | None = None,
    ) -> Forward:
        """Return a Forward of one step for a fully matched prompt: it reads and writes nothing."""
        copy = self._prompt(request_id, instance, 0)
        last_token = self._spec.requests[request_id].num_input_tokens - 1
        piece = Slice(request_id, 0, last_token, 1, copy.block_ids, writes=False)
        after = self._after(after, copy)
        return self._forward(instance, 1, (piece,), (), after, gate, deadline_at)

    def decode(
        self,
        num_steps: int,
        *requests: RequestId,
        instance: int = 0,
        after: tuple[OpId, ...] = (),
        gate: Gate = Gate.LAYER,
        deadline_at: int | None = None,
    ) -> Forward:
        """Return a Forward in which `requests`, whose prompts were computed, decode.

        Those in the instance's batch that are not named leave it.
        """
        return self._forward(instance, num_steps, (), requests, after, gate, deadline_at)

    def copy_down(
        self,
        request_id: RequestId,
        *,
        instance: int = 0,
        after: tuple[OpId, ...] = (),
        gate: Gate = Gate.OP,
        deadline_at: int | None = None,
    ) -> Transfer:
        """Return a Transfer of a prompt from the GPU to the CPU tier."""
        return self._transfer(request_id, instance, 0, after, gate, deadline_at)

    def copy_up(
        self,
        request_id: RequestId,
        *,
        instance: int = 0,
        after: tuple[OpId, ...] = (),
        gate: Gate = Gate.OP,
        deadline_at: int | None = None,
    ) -> Transfer:
        """Return a Transfer of a prompt from the CPU tier to new blocks of the GPU."""
        return self._transfer(request_id, instance, 1, after, gate, deadline_at)

    def settle(self, answer: Answer) -> None:
        """Take an answer: what need not be waited for any more, and how far a run has got."""
        if not isinstance(answer, Completion):
            return
        if answer.outcome is Outcome.DONE:
            self._done.add(answer.op_id)
        if answer.outcome in {Outcome.DONE, Outcome.CANCELLED}:
            self._harmless.add(answer.op_id)
        members, num_steps = self._runs.pop(answer.op_id, ((), 0))
        for member in members:
            member.num_tokens -= num_steps - answer.steps_done

    def _forward(
        self,
        instance: int,
        num_steps: int,
        prefill: tuple[Slice, ...],
        decoding: tuple[RequestId, ...],
        after: tuple[OpId, ...],
        gate: Gate,
        deadline_at: int | None,
    ) -> Forward:
        batch = self._instances[instance].batch
        left = tuple(request_id for request_id in batch if request_id not in decoding)
        for request_id in left:
            del batch[request_id]
        joined: list[Member] = []
        grown: list[tuple[RequestId, tuple[BlockId, ...]]] = []
        for request_id in decoding:
            member = batch.get(request_id)
            if member is None:
                num_tokens = self._spec.requests[request_id].num_input_tokens
                member = _Member(num_tokens, self._prompt(request_id, instance, 0))
                batch[request_id] = member
                member.table += self._room(instance, member, num_steps)
                joined.append(Member(request_id, 0, num_tokens, tuple(member.table)))
            elif more := self._room(instance, member, num_steps):
                member.table += more
                grown.append((request_id, more))
            member.runs = [run for run in member.runs if run not in self._harmless]
            after = (*self._after(after, member.prompt), *member.runs)
        context_tokens = sum(member.num_tokens + 1 for member in batch.values())
        op_id = self._next_op_id()
        self._runs[op_id] = (tuple(batch.values()), num_steps)
        for member in batch.values():
            member.num_tokens += num_steps
            member.runs.append(op_id)
        return Forward(
            op_id=op_id,
            instance=instance,
            num_steps=num_steps,
            prefill=prefill,
            joined=tuple(joined),
            left=left,
            grown=tuple(grown),
            num_decodes=len(batch),
            context_tokens=context_tokens,
            after=tuple(dict.fromkeys(after)),
            gate=gate,
            deadline_at=deadline_at,
        )

    def _transfer(
        self,
        request_id: RequestId,
        instance: int,
        source_tier: int,
        after: tuple[OpId, ...],
        gate: Gate,
        deadline_at: int | None,
    ) -> Transfer:
        source = self._prompt(request_id, instance, source_tier)
        target_tier = 1 - source_tier
        target_ids = self._take(instance, target_tier, len(source.block_ids))
        transfer = Transfer(
            op_id=self._next_op_id(),
            source=Place(instance=instance, tier=source_tier),
            target=Place(instance=instance, tier=target_tier),
            source_ids=source.block_ids,
            target_ids=target_ids,
            attempts=((request_id, 0),),
            after=self._after(after, source),
            gate=gate,
            deadline_at=deadline_at,
        )
        prompts = self._instances[instance].prompts[target_tier]
        prompts[request_id] = _Copy(target_ids, transfer.op_id)
        return transfer

    def _next_op_id(self) -> OpId:
        self._num_ops += 1
        return self._num_ops - 1

    def _prompt(self, request_id: RequestId, instance: int, tier: int) -> _Copy:
        copy = self._instances[instance].prompts[tier].get(request_id)
        if copy is None:
            raise MisuseError(
                f"no op has written the prompt of request {request_id} to tier {tier} of"
                f" instance {instance}"
            )
        return copy

    def _after(self, after: tuple[OpId, ...], copy: _Copy) -> tuple[OpId, ...]:
        """Add the writer of what is read, unless it has ended DONE or is named."""
        is_named = copy.writer in self._done or copy.writer in after
        return after if is_named else (*after, copy.writer)

    def _room(self, instance: int, member: _Member, num_steps: int) -> tuple[BlockId, ...]:
        """Take the blocks that a member's table lacks for `num_steps` more tokens."""
        num_blocks = -(-(member.num_tokens + num_steps) // self._spec.block_size)
        return self._take(instance, 0, max(0, num_blocks - len(member.table)))

    def _take(self, instance: int, tier: int, num_blocks: int) -> tuple[BlockId, ...]:
        """Take fresh blocks: no block is taken twice."""
        taken = self._instances[instance].num_taken
        capacity = (self._spec.num_gpu_blocks, self._spec.num_cpu_blocks)[tier]
        first = taken[tier]
        if first + num_blocks > capacity:
            raise MisuseError(f"a scenario needs more than the {capacity} blocks of tier {tier}")
        taken[tier] += num_blocks
        return tuple(range(first, first + num_blocks))

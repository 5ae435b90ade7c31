"""Which instances a request goes to. Deterministic: the state of the instances decides."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvsim.config import Role, Routing
from kvsim.core.handoff import Phase
from kvsim.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kvsim.core.handoff import Handoff, Instance
    from kvsim.types import Request


class Dispatcher:
    """Deals out requests: to a prefill and a decode instance, or to one alone.

    A request that makes one more token has no use for a decode instance.

    Parameters
    ----------
    instances
        All of them.
    routing
        By which rule.

    Raises
    ------
    ConfigError
        If no instance computes prompts, or none decodes, or block sizes or numbers do not fit.
    """

    __slots__ = ("_decoding", "_mixed", "_prefilling", "block_size")

    def __init__(self, instances: Sequence[Instance], routing: Routing) -> None:
        roles = {each.role for each in instances}
        if not (Role.MIXED in roles or {Role.PREFILL, Role.DECODE} <= roles):
            names = ", ".join(sorted(roles)) or "none"
            raise ConfigError(
                f"the roles of the instances are: {names}; it takes prefill and decode, or mixed"
            )
        sizes = sorted({each.manager.config.block_size for each in instances})
        if len(sizes) > 1:
            raise ConfigError(
                f"block sizes differ: {sizes} tokens; instances that hand over blocks need one size"
            )
        numbers = [each.number for each in instances]
        if len(set(numbers)) < len(numbers):
            raise ConfigError(f"instance numbers must differ, not {sorted(numbers)}")
        self.block_size = sizes[0]
        self._prefilling = _Group(instances, {Role.MIXED, Role.PREFILL}, routing)
        self._mixed = _Group(instances, {Role.MIXED}, routing)
        self._decoding = _Group(instances, {Role.DECODE}, routing)

    def allowed_blocks(self, request: Request) -> int:
        """Return the longest block table that the request may have."""
        alone = self._mixed.allowed_blocks
        if request.num_output_tokens == 1:
            return self._prefilling.allowed_blocks
        # After a preemption all but the last token may have to be computed again.
        return max(alone, min(self._prefilling.allowed_blocks, self._decoding.allowed_blocks))

    def place(self, handoff: Handoff) -> None:
        """Choose the instances of the next attempt, and its phase: WAITING or ALONE.

        Its table must be within `allowed_blocks`.
        """
        num_blocks = handoff.num_most_blocks
        is_last = handoff.num_left == 1
        group = self._prefilling
        if not is_last and self._decoding.allowed_blocks < num_blocks:
            group = self._mixed
        prefill = handoff.prefill = group.choose(handoff)
        is_alone = is_last or prefill.role is Role.MIXED
        handoff.decode = None if is_alone else self._decoding.choose(handoff)
        handoff.phase = Phase.ALONE if is_alone else Phase.WAITING
        handoff.num_routed_tokens = handoff.num_known_tokens
        for instance in (handoff.prefill, handoff.decode):
            if instance is not None:
                instance.num_tokens += handoff.num_routed_tokens

    @staticmethod
    def leave(handoff: Handoff) -> None:
        """Take a request off the loads of its instances, whose attempt has ended."""
        for instance in (handoff.prefill, handoff.decode):
            if instance is not None:
                instance.num_tokens -= handoff.num_routed_tokens
        handoff.num_routed_tokens = 0


class _Group:
    """Instances among which a request may choose."""

    __slots__ = ("_instances", "_next", "_routing", "allowed_blocks")

    def __init__(self, instances: Sequence[Instance], roles: set[Role], routing: Routing) -> None:
        self._instances = [each for each in instances if each.role in roles]
        self._routing = routing
        self._next = 0
        self.allowed_blocks = max(
            (each.scheduler.limits.most_blocks for each in self._instances), default=0
        )

    def choose(self, handoff: Handoff) -> Instance:
        """Return the instance by the rule, among those that are large enough."""
        num_blocks = handoff.num_most_blocks
        fitting = [i for i in self._instances if i.scheduler.limits.most_blocks >= num_blocks]
        if self._routing is Routing.ROUND_ROBIN:
            self._next += 1
            return fitting[(self._next - 1) % len(fitting)]
        if self._routing is Routing.LEAST_LOADED:
            return min(fitting, key=lambda each: (each.num_tokens, each.number))
        return min(fitting, key=lambda each: (_cost(each, handoff), each.number))


def _cost(instance: Instance, handoff: Handoff) -> int:
    """Return the tokens there, with those of the request that are not cached."""
    keys = handoff.request.block_keys
    num_hit_tokens = len(instance.manager.match(keys)) * instance.manager.config.block_size
    return instance.num_tokens + max(1, handoff.num_known_tokens - num_hit_tokens)

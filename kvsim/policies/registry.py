"""The table of policies, and how a name, a class, a function or an instance becomes a factory."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol, TypeAlias, cast

from kvsim.errors import ConfigError, UnknownNameError
from kvsim.policies.adapter import PerBlockAdapter
from kvsim.policies.arc import ARC
from kvsim.policies.belady import Belady
from kvsim.policies.fifo import FIFO
from kvsim.policies.gdsf import GDSF
from kvsim.policies.length_aware import LengthAware
from kvsim.policies.lfu import LFU, PersistentLFU
from kvsim.policies.lru import LRU, AdmissionLRU
from kvsim.policies.random_choice import RandomChoice
from kvsim.policies.s3fifo import S3FIFO
from kvsim.policies.sieve import SIEVE
from kvsim.policies.slru import SLRU
from kvsim.policies.two_queue import TwoQueue

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.core.ports import BlockPolicy, EvictionPolicy, PolicyContext

    AnyPolicy: TypeAlias = EvictionPolicy | BlockPolicy


class PolicyMaker(Protocol):
    """Makes the policy of one tier: a class, or a function."""

    def __call__(self, context: PolicyContext, /) -> AnyPolicy:
        """Return a policy for the tier that `context` describes."""


POLICIES: dict[str, PolicyMaker] = {
    "lru": LRU,
    "lru-admit": AdmissionLRU,
    "fifo": FIFO,
    "lfu": LFU,
    "lfu-persistent": PersistentLFU,
    "slru": SLRU,
    "2q": TwoQueue,
    "arc": ARC,
    "sieve": SIEVE,
    "s3fifo": S3FIFO,
    "gdsf": GDSF,
    "length-aware": LengthAware,
    "random": RandomChoice,
    "belady": Belady,
}

_ENTRY_POINT_GROUP = "kvsim.policies"


@cache
def _installed() -> dict[str, PolicyMaker]:
    """Policies of installed packages, read once."""
    found = entry_points(group=_ENTRY_POINT_GROUP)
    return {point.name: cast("PolicyMaker", point.load()) for point in found}


def policy_names() -> list[str]:
    """Return every policy name that can be asked for, sorted."""
    return sorted({*POLICIES, *_installed()})


def policy_factory(
    policy: str | PolicyMaker | AnyPolicy,
) -> tuple[str, Callable[[PolicyContext], EvictionPolicy], bool]:
    """Turn what a user gave into a factory of batch policies.

    Parameters
    ----------
    policy
        A name from `policy_names()`; a class or function that takes a `PolicyContext`; or one
        policy object, which then serves a single tier.

    Returns
    -------
    tuple
        Its name, the factory, and whether it needs the future (`needs_future`).

    Raises
    ------
    UnknownNameError
        If there is no policy of that name.
    ConfigError
        If one object is asked to serve two tiers.
    """
    if isinstance(policy, str):
        maker = POLICIES.get(policy) or _installed().get(policy)
        if maker is None:
            raise UnknownNameError("policy", policy, policy_names())
        return policy, _adapted(maker), bool(getattr(maker, "needs_future", False))
    if callable(policy):
        name = getattr(policy, "__name__", type(policy).__name__)
        return name, _adapted(policy), bool(getattr(policy, "needs_future", False))
    name = type(policy).__name__
    return name, _once(policy, name), bool(getattr(policy, "needs_future", False))


def _adapted(maker: PolicyMaker) -> Callable[[PolicyContext], EvictionPolicy]:
    def build(context: PolicyContext) -> EvictionPolicy:
        return _batch_form(maker(context), context)

    return build


def _once(policy: AnyPolicy, name: str) -> Callable[[PolicyContext], EvictionPolicy]:
    def build(context: PolicyContext) -> EvictionPolicy:
        if context.tier:
            raise ConfigError(
                f"policy must be a class or a name when there are two tiers: one {name} object"
                " cannot order the GPU and the CPU tier at a time"
            )
        return _batch_form(policy, context)

    return build


def _batch_form(policy: AnyPolicy, context: PolicyContext) -> EvictionPolicy:
    # The two forms differ by their victim method; which of them a class has is its declaration.
    if "choose_victims" in dir(policy):
        return cast("EvictionPolicy", policy)
    if "choose_victim" in dir(policy):
        return PerBlockAdapter(cast("BlockPolicy", policy), context)
    raise ConfigError(
        f"policy {type(policy).__name__} has neither choose_victims (batch form) nor"
        " choose_victim (per-block form); see kvsim.core.ports"
    )

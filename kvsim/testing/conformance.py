"""Holds an eviction policy to its contract: `check_policy`."""

from __future__ import annotations

import inspect
from dataclasses import asdict, dataclass
from random import Random
from typing import TYPE_CHECKING, Final

from kvsim.config import CacheConfig
from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.core.manager import Blocked, CacheManager
from kvsim.core.ops import Completion, Outcome
from kvsim.errors import ConfigError, KvsimError, UnknownNameError
from kvsim.events import EndReason
from kvsim.policies import policy_factory
from kvsim.policies.adapter import PerBlockAdapter
from kvsim.testing.checked import CheckedBlockPolicy, CheckedPolicy
from kvsim.testing.findings import WAIVABLE, ConformanceError, Finding
from kvsim.testing.singles import check_cost, check_hits
from kvsim.types import Request

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

    from kvsim.core.ports import EvictionPolicy, PolicyContext
    from kvsim.policies.registry import PolicyMaker
    from kvsim.types import BlockKey

_BATCH_METHODS: Final = {
    "on_insert": 3, "on_hit": 3, "on_release": 2, "on_evictable": 1, "on_pinned": 1,
    "on_remove": 2, "choose_victims": 3,
}  # fmt: skip
_BLOCK_METHODS: Final = {
    "on_insert": 3, "on_hit": 3, "on_evictable": 1, "on_pinned": 1, "on_remove": 2,
    "choose_victim": 1,
}  # fmt: skip
_REPEATED_TRACES: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyReport:
    """What was done to find that a policy keeps its contract.

    Parameters
    ----------
    policy, form
        Its name, and "per-block" or "batch".
    num_traces, num_requests
        Random traces, each through a cache of one tier or of two, and requests in all of them.
    num_calls, num_victims
        Calls to the policy meanwhile, and victims it chose.
    num_repeated
        Traces that were run a second time with keys of other hashes, and gave the same victims.
    uses_hits
        Whether hits changed its victims; None if it says that they should not, or that was waived.
    steps
        By method: mean steps a call with few and with many blocks in the tier. Empty if waived.
    """

    policy: str
    form: str
    num_traces: int
    num_requests: int
    num_calls: int
    num_victims: int
    num_repeated: int
    uses_hits: bool | None
    steps: dict[str, tuple[float, float]]

    def to_dict(self) -> dict[str, object]:
        """Return the report as JSON values."""
        return asdict(self)

    def lines(self) -> list[str]:
        """Return the report as lines for people, one for each thing that was checked."""
        found = [
            f"{self.num_calls} calls in {self.num_traces} traces ({self.num_requests} requests):"
            f" {self.num_victims} victims, all of them evictable, and none missing",
            f"{self.num_repeated} traces again, with other hashes: the same victims",
        ]
        if self.uses_hits:
            found.append("hits change what it evicts")
        else:
            found.append("whether hits change what it evicts was not asked: it says they do not")
        if self.steps:
            most = max(self.steps, key=lambda name: self.steps[name][1])
            few, many = self.steps[most]
            found.append(
                f"no call costs more with more blocks; the most: {most}, {few:.0f} steps a call"
                f" with few blocks and {many:.0f} with many"
            )
        else:
            found.append("what a call costs was not asked")
        return found


def check_policy(
    policy: str | PolicyMaker,
    *,
    num_traces: int = 50,
    num_requests: int = 40,
    seed: int = 0,
    waive: Collection[str] = (),
) -> PolicyReport:
    """Hold a policy to its contract, and return what was done.

    Random requests that share prefixes and overlap in time go through caches of one tier and of
    two, so small that almost every request evicts; now and then a part of the tree is taken out.
    Some of it is repeated, with keys that hash otherwise, to see whether the same calls give the
    same victims. Then blocks without parents show whether hits matter, and what a call costs with
    few and with many blocks in the tier (in steps, not in time).

    Parameters
    ----------
    policy
        A name, or a class or function that takes a `PolicyContext` (either form; see
        `kvsim.core.ports`).
    num_traces, num_requests
        How many traces, and requests in each.
    seed
        Another seed, other requests.
    waive
        Findings that are meant to be: "ignores-hits", "cost". A class with `ignores_hits = True`
        waives the first itself.

    Raises
    ------
    ConformanceError
        If the policy breaks the contract. Its one line says what was done, at which call, and
        which sentence was broken; `finding` names it.
    ConfigError
        If a number is less than 1, or the policy cannot be made with a `PolicyContext` or has no
        method to choose victims.
    UnknownNameError
        If there is no policy of that name, or nothing of that name to waive.
    """
    _require_arguments(num_traces=num_traces, num_requests=num_requests, waive=waive)
    name, make, _ = policy_factory(policy)
    _require_maker(policy, name)
    runs = _run_all(make, name, num_traces=num_traces, num_requests=num_requests, seed=seed)
    ignores_hits = runs[0].ignores_hits or Finding.IGNORES_HITS in waive
    if not ignores_hits:
        check_hits(make, name, seed=seed)
    return PolicyReport(
        policy=name,
        form=runs[0].form,
        num_traces=num_traces,
        num_requests=num_traces * num_requests,
        num_calls=sum(run.num_calls for run in runs),
        num_victims=sum(len(run.victims) for run in runs),
        num_repeated=min(num_traces, _REPEATED_TRACES),
        uses_hits=None if ignores_hits else True,
        steps={} if Finding.COST in waive else check_cost(make, name, seed=seed),
    )


def _require_arguments(*, num_traces: int, num_requests: int, waive: Collection[str]) -> None:
    for name, number in (("num_traces", num_traces), ("num_requests", num_requests)):
        if number < 1:
            raise ConfigError(f"{name} must be at least 1, not {number}")
    for name in waive:
        if name not in WAIVABLE:
            raise UnknownNameError("finding to waive", name, WAIVABLE)


class LetterKey:
    """A block key: the letters of a prompt up to the block. How it hashes depends on `salt`."""

    __slots__ = ("_hash", "letters")

    def __init__(self, letters: str, salt: int) -> None:
        self.letters = letters
        # Of numbers only: the hashes of strings change from one process to the next.
        self._hash = hash((salt, *letters.encode()))

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LetterKey) and self.letters == other.letters

    def __repr__(self) -> str:
        return self.letters


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    """What came of one trace."""

    form: str
    ignores_hits: bool
    num_calls: int
    victims: list[str]
    """Each with its tier and the number of the call."""


def _run_all(
    make: Callable[[PolicyContext], EvictionPolicy],
    name: str,
    *,
    num_traces: int,
    num_requests: int,
    seed: int,
) -> list[_Run]:
    """Run all traces, and the first of them twice."""
    runs: list[_Run] = []
    for i in range(num_traces):
        runs.append(_run(make, name, seed=(seed, i), num_requests=num_requests, salt=0))
        if i < _REPEATED_TRACES:
            again = _run(make, name, seed=(seed, i), num_requests=num_requests, salt=1 + i)
            _require_same(name, runs[i], again)
    return runs


def _run(
    make: Callable[[PolicyContext], EvictionPolicy],
    name: str,
    *,
    seed: tuple[int, int],
    num_requests: int,
    salt: int,
) -> _Run:
    rng = Random(f"{seed}")
    config = CacheConfig(
        block_size=1,
        tier_blocks=(rng.randint(1, 10), rng.randint(0, 8)),
        swap_batch_blocks=rng.randint(1, 3),
        low_watermark_blocks=0,
    )
    checked: list[CheckedPolicy] = []
    victims: list[str] = []
    kinds: set[tuple[str, bool]] = set()

    def build(context: PolicyContext) -> EvictionPolicy:
        policy, form, ignores_hits = _checked_form(make, context, name)
        kinds.add((form, ignores_hits))
        checked.append(CheckedPolicy(policy, key_of=context.key_of, name=name, log=victims.append))
        return checked[-1]

    # A generator of its own: what the policy draws must not change the requests.
    manager = CacheManager(config, build, rng=Random(seed[0]))
    _run_overlapping(manager, rng, num_requests, salt)
    form, ignores_hits = kinds.pop()
    return _Run(
        form=form,
        ignores_hits=ignores_hits,
        num_calls=sum(each.num_calls for each in checked),
        victims=victims,
    )


def _checked_form(
    make: Callable[[PolicyContext], EvictionPolicy], context: PolicyContext, name: str
) -> tuple[EvictionPolicy, str, bool]:
    """Make the policy of a tier; check its methods, and in the per-block form its calls."""
    try:
        policy = make(context)
    except KvsimError:
        raise
    except Exception as error:  # whatever it is, the policy's own: a finding
        raise ConformanceError(
            Finding.RAISES, f"{name}, when it was made, raised {type(error).__name__}: {error}"
        ) from error
    if isinstance(policy, PerBlockAdapter):
        inner = policy.policy
        _require_methods(inner, _BLOCK_METHODS)
        policy.policy = CheckedBlockPolicy(inner)
        return policy, "per-block", bool(getattr(inner, "ignores_hits", False))
    _require_methods(policy, _BATCH_METHODS)
    return policy, "batch", bool(getattr(policy, "ignores_hits", False))


def _require_maker(policy: object, name: str) -> None:
    if isinstance(policy, str):
        return
    if not callable(policy):
        raise ConfigError(f"check_policy needs a class or a name, not one {name} object")
    try:
        inspect.signature(policy).bind(None)
    except TypeError as error:
        raise ConfigError(
            f"policy {name} cannot be made as {name}(context): {error}; it must take one"
            " PolicyContext"
        ) from error


def _require_methods(policy: object, methods: dict[str, int]) -> None:
    name = type(policy).__name__
    for method, num_arguments in methods.items():
        found = getattr(policy, method, None)
        if not callable(found):
            raise ConformanceError(Finding.METHODS, f"{name} has no method {method}")
        try:
            inspect.signature(found).bind(*[None] * num_arguments)
        except TypeError as error:
            raise ConformanceError(
                Finding.METHODS,
                f"{name}.{method} cannot be called with {num_arguments} arguments: {error}",
            ) from error


def _require_same(name: str, first: _Run, again: _Run) -> None:
    for i, (one, other) in enumerate(zip(first.victims, again.victims, strict=False)):
        if one != other:
            raise ConformanceError(
                Finding.NON_DETERMINISTIC,
                f"{name} took another victim, number {i + 1}, when the same calls were repeated,"
                " with keys that hash otherwise:"
                f" {one} the first time, {other} the second",
            )


def _run_overlapping(manager: CacheManager, rng: Random, num_requests: int, salt: int) -> None:
    """Put random requests through, up to four of them at a time."""
    live: list[Attempt] = []
    for i in range(num_requests):
        num_blocks = rng.randint(1, min(6, manager.config.tier_blocks[0]))
        request = _request(i, "".join(rng.choice("aab") for _ in range(num_blocks)), salt)
        attempt = Attempt(
            request,
            number=0,
            layout=BlockLayout(request, 1),
            num_made=0,
            num_wanted_blocks=num_blocks,
        )
        while not attempt.is_admitted:
            outcome = manager.admit(attempt, i)
            if isinstance(outcome, Blocked):
                manager.release(live.pop(rng.randrange(len(live))), EndReason.FINISHED, i)
                continue
            for op in outcome.ops:
                done = Completion(op_id=op.op_id, outcome=Outcome.DONE, started_at=i, finished_at=i)
                manager.settle(done)
        manager.fill_at_once(attempt, num_blocks)
        live.append(attempt)
        while len(live) > rng.randrange(4):
            manager.release(live.pop(rng.randrange(len(live))), EndReason.FINISHED, i)
        if not rng.randrange(8):
            _take_out(manager, rng)
        manager.check()


def _request(index: int, letters: str, salt: int) -> Request:
    keys: Sequence[BlockKey] = [LetterKey(letters[: i + 1], salt) for i in range(len(letters))]
    return Request(
        request_id=index,
        arrived_at=index,
        block_keys=keys,
        num_input_tokens=len(letters),
        num_output_tokens=1,
        # Made up, for clairvoyant policies; they never fall along the path.
        next_use_at=[index + 1 + i for i in range(len(letters))],
    )


def _take_out(manager: CacheManager, rng: Random) -> None:
    """Take a block and all below it out of the tree, as a failed operation does."""
    cache = manager._cache  # noqa: SLF001  (no call of the manager's does this without a failure)
    nodes = list(cache.tree.index.values())
    if nodes:
        top = nodes[rng.randrange(len(nodes))]
        if not any(cache.tree.pins[node] for node in cache.tree.subtree(top)):
            cache.detach(top)

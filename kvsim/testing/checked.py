"""Stand between the core and a policy, in either form, and hold both to their contract."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from kvsim.core.ports import RemoveReason
from kvsim.errors import InvariantError, KvsimError
from kvsim.testing.findings import ConformanceError, Finding
from kvsim.testing.ledger import Ledger

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kvsim.core.ports import AccessInfo, BlockPolicy, EvictionPolicy
    from kvsim.types import BlockKey, NodeId

P = ParamSpec("P")
R = TypeVar("R")


class CheckedPolicy:
    """Stands between the core and an eviction policy in its batch form.

    Parameters
    ----------
    policy
        The policy.
    is_ranked
        Whether it must always take the smallest of the ranks that it hands to `peel`.
    key_of
        Names the nodes in messages; without it they are numbers.
    name
        Names the policy in messages; default: its class.
    log
        Told of each victim, by its key and the number of the call.

    Attributes
    ----------
    known, listed
        Nodes that are in the tier, and those of them that may be chosen, as far as the calls say.
    pending
        Victims whose removal has not been reported yet.

    Raises
    ------
    InvariantError
        From any call that the core should not have made.
    ConformanceError
        If the policy returns victims that it may not, or too few, or raises an exception.
    """

    def __init__(
        self,
        policy: EvictionPolicy,
        *,
        is_ranked: bool = False,
        key_of: Sequence[BlockKey] | None = None,
        name: str | None = None,
        log: Callable[[str], object] | None = None,
    ) -> None:
        self._policy = policy
        self._name = type(policy).__name__ if name is None else name
        self._log = log
        self._is_ranked = is_ranked
        self._key_of = key_of
        self._ledger = Ledger["NodeId"](self._called)
        self.known = self._ledger.known
        self.listed = self._ledger.listed
        self.pending: list[NodeId] = []

    @property
    def num_calls(self) -> int:
        """Calls so far."""
        return self._ledger.num_calls

    def on_insert(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        """Check that the nodes are new."""
        self._require(self.known.isdisjoint(nodes), "on_insert", nodes, "known already")
        self._require(len(set(nodes)) == len(nodes), "on_insert", nodes, "named twice")
        self._ledger.enter(nodes)
        self._see(nodes, depth, info)
        self._call("on_insert", self._policy.on_insert, nodes, depth, info)

    def on_hit(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo) -> None:
        """Check that the nodes are known."""
        self._require(self.known.issuperset(nodes), "on_hit", nodes, "not known")
        self._see(nodes, depth, info)
        self._call("on_hit", self._policy.on_hit, nodes, depth, info)

    def on_release(self, path: Sequence[NodeId], info: AccessInfo) -> None:
        """Check that the nodes are known."""
        self._require(self.known.issuperset(path), "on_release", path, "not known")
        self._call("on_release", self._policy.on_release, path, info)

    def on_evictable(self, node: NodeId) -> None:
        """Check that the node is known and no victim."""
        self._require(node in self.known, "on_evictable", [node], "not known")
        self._require(node not in self.pending, "on_evictable", [node], "a victim")
        self._ledger.list(node)
        self._call("on_evictable", self._policy.on_evictable, node)

    def on_pinned(self, node: NodeId) -> None:
        """Check that the node is known."""
        self._require(node in self.known, "on_pinned", [node], "not known")
        self._ledger.pin(node)
        self._call("on_pinned", self._policy.on_pinned, node)

    def on_remove(self, nodes: Sequence[NodeId], reason: RemoveReason) -> None:
        """Check that the nodes are known, and that chosen ones were chosen."""
        self._require(self.known.issuperset(nodes), "on_remove", nodes, "not known")
        chosen = reason in {RemoveReason.EVICTED, RemoveReason.DEMOTED}
        for node in nodes:
            self._require((node in self.pending) == chosen, "on_remove", [node], f"not {reason}")
            if chosen:
                self.pending.remove(node)
            self._ledger.remove(node, reason)
        self._call("on_remove", self._policy.on_remove, nodes, reason)

    def choose_victims(self, n: int, peel: Callable[..., NodeId], now: int) -> list[NodeId]:
        """Check that every victim was evictable in its turn, and that there are enough."""
        self._require(not self.pending, "choose_victims", self.pending, "not reported as removed")
        self._require(n >= 0, "choose_victims", [n], "a negative number")
        taken: list[NodeId] = []

        def watched(
            leaf: NodeId, room: int, rank: Sequence[int], limit: int, out: list[NodeId]
        ) -> NodeId:
            verdict = self._ledger.judge(leaf)
            if verdict is not None:
                finding, why = verdict
                raise self._fault(finding, f"took block {self._called(leaf)}, {why}")
            start = len(out)
            bare = peel(leaf, room, rank, limit, out)
            for node in out[start:]:
                self._ledger.list(node)
                if self._is_ranked and any(rank[v] < rank[node] for v in self.listed):
                    raise self._fault(
                        Finding.UNPEELED,
                        f"took block {self._called(node)}, which does not have the smallest rank",
                    )
                self.listed.remove(node)
            taken.extend(out[start:])
            if bare >= 0:
                self._ledger.list(bare)
            return bare

        victims = self._call("choose_victims", self._policy.choose_victims, n, watched, now)
        self._require_victims(victims, taken, n)
        self.pending = list(victims)
        if self._log is not None and self._key_of is not None:
            for node in victims:
                self._log(f"{self._key_of[node]!r} at call {self._ledger.num_calls}")
        return victims

    def _require_victims(self, victims: list[NodeId], taken: list[NodeId], n: int) -> None:
        if victims != taken or len(victims) > n:
            raise self._fault(
                Finding.UNPEELED,
                f"returned {self._all_called(victims)} when asked for {n}, and took"
                f" {self._all_called(taken)} with peel",
            )
        if len(victims) < n and self.listed:
            raise self._fault(
                Finding.NO_VICTIM,
                f"returned {len(victims)} of {n} victims while {len(self.listed)} more are"
                " evictable",
            )

    def _call(self, name: str, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._ledger.num_calls += 1
        with _finding(self._name, name, self._ledger.num_calls):
            return method(*args, **kwargs)

    def _see(self, nodes: Sequence[NodeId], depth: int, info: AccessInfo | None) -> None:
        if info is not None:
            for at, node in enumerate(nodes, depth):
                self._ledger.see(node, at, info.request_index)

    def _fault(self, finding: Finding, problem: str) -> ConformanceError:
        where = f"{self._name}.choose_victims (call {self._ledger.num_calls})"
        return ConformanceError(finding, f"{where} {problem}")

    def _called(self, node: NodeId) -> object:
        if self._key_of is None or not 0 <= node < len(self._key_of):
            return node
        return f"{self._key_of[node]!r} (node {node})"

    def _all_called(self, nodes: Sequence[NodeId]) -> str:
        return f"[{', '.join(str(self._called(node)) for node in nodes)}]"

    @staticmethod
    def _require(condition: object, call: str, nodes: object, problem: str) -> None:
        if not condition:
            raise InvariantError(f"{call} of {nodes}: {problem}")


class CheckedBlockPolicy:
    """Stands between the adapter and a policy in its per-block form.

    Parameters
    ----------
    policy
        The policy.

    Raises
    ------
    ConformanceError
        If the policy returns a victim that it may not, or none, or raises an exception.
    """

    def __init__(self, policy: BlockPolicy) -> None:
        self._policy = policy
        self._name = type(policy).__name__
        self._ledger = Ledger["BlockKey"]()

    def on_insert(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Take note and pass on."""
        self._ledger.enter([key])
        self._ledger.see(key, depth, info.request_index)
        self._call("on_insert", self._policy.on_insert, key, depth, info)

    def on_hit(self, key: BlockKey, depth: int, info: AccessInfo) -> None:
        """Take note and pass on."""
        self._ledger.see(key, depth, info.request_index)
        self._call("on_hit", self._policy.on_hit, key, depth, info)

    def on_evictable(self, key: BlockKey) -> None:
        """Take note and pass on."""
        self._ledger.list(key)
        self._call("on_evictable", self._policy.on_evictable, key)

    def on_pinned(self, key: BlockKey) -> None:
        """Take note and pass on."""
        self._ledger.pin(key)
        self._call("on_pinned", self._policy.on_pinned, key)

    def on_remove(self, key: BlockKey, reason: RemoveReason) -> None:
        """Take note and pass on."""
        self._ledger.remove(key, reason)
        self._call("on_remove", self._policy.on_remove, key, reason)

    def choose_victim(self, now: int) -> BlockKey | None:
        """Check that the block may go, and that there is one if one may."""
        key = self._call("choose_victim", self._policy.choose_victim, now)
        where = f"{self._name}.choose_victim (call {self._ledger.num_calls})"
        if key is None:
            num_listed = len(self._ledger.listed)
            if num_listed:
                raise ConformanceError(
                    Finding.NO_VICTIM, f"{where} returned None while {num_listed} are evictable"
                )
            return None
        verdict = self._ledger.judge(key)
        if verdict is not None:
            finding, why = verdict
            raise ConformanceError(finding, f"{where} returned block {key!r}, {why}")
        return key

    def _call(self, name: str, method: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        self._ledger.num_calls += 1
        with _finding(self._name, name, self._ledger.num_calls):
            return method(*args, **kwargs)


@contextmanager
def _finding(policy: str, method: str, call: int) -> Iterator[None]:
    """Make a finding of whatever a policy raises: it is anybody's code, so it may be anything."""
    try:
        yield
    except KvsimError:
        raise
    except Exception as error:
        raise raised(policy, method, call, error) from error


def raised(policy: str, method: str, call: int, error: Exception) -> ConformanceError:
    """Return the finding that a method raised `error`."""
    return ConformanceError(
        Finding.RAISES, f"{policy}.{method} (call {call}) raised {type(error).__name__}: {error}"
    )

"""Counts what a policy does, in steps and not in time, so that a busy machine changes nothing.

A step is a line of Python, a call of a Python function, a comparison or a hash of a block, or an
element that a built-in function goes through. What C code does with numbers of the policy's own
(`list(self.ages)`) is not seen.
"""

from __future__ import annotations

import builtins
import heapq
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import FrameType

    from kvsim.core.ports import EvictionPolicy

_LINEAR: Final = ("min", "max", "sorted", "sum", "any", "all")
_LINEAR_HEAPQ: Final = ("heapify", "nsmallest", "nlargest")
_LINEAR_METHODS: Final = frozenset({"sort", "copy", "reverse"})


class StepCounter:
    """Counts steps by the method of the policy that they are made in.

    Attributes
    ----------
    num_steps, num_calls
        By method.
    """

    def __init__(self) -> None:
        self.num_steps: dict[str, int] = {}
        self.num_calls: dict[str, int] = {}
        self.is_on = False
        self._num = 0

    def add(self, num: int) -> None:
        """Count steps, if a policy is being watched just now."""
        if self.is_on:
            self._num += num

    def mean_steps(self, name: str) -> float:
        """Return the steps of a call of a method, on average."""
        return self.num_steps[name] / self.num_calls[name]

    def watch(self, name: str, method: Callable[..., object], *args: object) -> object:
        """Call a method of the policy and count what it does."""
        old_trace, old_profile = sys.gettrace(), sys.getprofile()
        self._num = 0
        self.is_on = True
        sys.setprofile(self._profile)
        sys.settrace(self._trace)
        try:
            return method(*args)
        finally:
            sys.settrace(old_trace)
            sys.setprofile(old_profile)
            self.is_on = False
            self.num_steps[name] = self.num_steps.get(name, 0) + self._num
            self.num_calls[name] = self.num_calls.get(name, 0) + 1

    def _trace(self, frame: FrameType, event: str, arg: object) -> Any:  # noqa: ANN401  (as sys has it)
        del arg
        if frame.f_code.co_filename == __file__:
            return None  # what counts is not counted
        # A loop on one line gives a line event for each turn.
        self._num += event in {"call", "line"}
        return self._trace

    def _profile(self, frame: FrameType, event: str, arg: object) -> None:
        del frame
        if event == "c_call" and getattr(arg, "__name__", "") in _LINEAR_METHODS:
            owner = getattr(arg, "__self__", None)
            if isinstance(owner, list | dict | set):
                self._num += len(owner)


class WatchedPolicy:
    """A policy in its batch form, whose every call is counted once `is_watched` is set."""

    def __init__(self, policy: EvictionPolicy, counter: StepCounter) -> None:
        self.is_watched = False
        for name in METHODS:
            setattr(self, name, self._watched(name, getattr(policy, name), counter))

    def as_policy(self) -> EvictionPolicy:
        """Return this, as what it stands for."""
        return cast("EvictionPolicy", self)

    def _watched(
        self, name: str, method: Callable[..., object], counter: StepCounter
    ) -> Callable[..., object]:
        def call(*args: object) -> object:
            return counter.watch(name, method, *args) if self.is_watched else method(*args)

        return call


METHODS: Final = (
    "on_insert", "on_hit", "on_release", "on_evictable", "on_pinned", "on_remove",
    "choose_victims",
)  # fmt: skip


class CountedNode(int):
    """A node whose comparisons and hashes count."""

    counter: StepCounter

    def __hash__(self) -> int:
        self.counter.add(1)
        return int(self)

    def __eq__(self, other: object) -> bool:
        self.counter.add(1)
        return int(self) == other

    def __lt__(self, other: int) -> bool:
        self.counter.add(1)
        return int(self) < other


class CountedKey:
    """A block key whose comparisons and hashes count."""

    __slots__ = ("counter", "name")

    def __init__(self, name: int, counter: StepCounter) -> None:
        self.name = name
        self.counter = counter

    def __hash__(self) -> int:
        self.counter.add(1)
        return self.name

    def __eq__(self, other: object) -> bool:
        self.counter.add(1)
        return isinstance(other, CountedKey) and self.name == other.name

    def __repr__(self) -> str:
        return f"b{self.name}"


def counted_nodes(num_nodes: int, counter: StepCounter) -> list[int]:
    """Return the nodes from 1 on, counting."""

    class Node(CountedNode):
        """One counter for all."""

    Node.counter = counter
    return [Node(node) for node in range(1, num_nodes)]


@contextmanager
def counted_builtins(policy: object, counter: StepCounter) -> Iterator[None]:
    """Let `min`, `sorted` and the like count in the modules that a policy is written in.

    For as long as the context lasts, those modules have counting ones of their own.
    """
    functions = {name: getattr(builtins, name) for name in _LINEAR}
    functions |= {name: getattr(heapq, name) for name in _LINEAR_HEAPQ}
    modules = _modules_of(policy)
    before = [dict(module) for module in modules]
    for module in modules:
        for name, function in functions.items():
            if module.get(name, function) is function and (name in _LINEAR or name in module):
                module[name] = _counting(function, counter)
    try:
        yield
    finally:
        for module, old in zip(modules, before, strict=True):
            for name in functions:
                if name in old:
                    module[name] = old[name]
                else:
                    module.pop(name, None)


def _modules_of(policy: object) -> list[dict[str, Any]]:
    found: dict[int, dict[str, Any]] = {}
    for cls in type(policy).__mro__:
        for function in vars(cls).values():
            scope = getattr(function, "__globals__", None)
            if scope is not None:
                found[id(scope)] = scope
    return list(found.values())


def _counting(function: Callable[..., object], counter: StepCounter) -> Callable[..., object]:
    def counted(*args: Any, **kwargs: object) -> object:  # noqa: ANN401  (of what it stands for)
        for each in args:
            # A generator's turns are lines of Python and count as such.
            if hasattr(each, "__len__"):
                counter.add(len(each))
        return function(*args, **kwargs)

    return counted

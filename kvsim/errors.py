"""Every error kvsim raises on purpose.

`UserError` and its subclasses carry one line for a person (what, where, the value seen, what would
be right) and end a command with exit code 2. `TransferError` is one line too, about workers that
were lost, and ends it with 3. The others mean misuse of the Python API or a bug.
"""

from __future__ import annotations

from difflib import get_close_matches
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


class KvsimError(Exception):
    """Base of every error that kvsim raises on purpose."""


class UserError(KvsimError, ValueError):
    """An input that cannot be used; the message is one line for the person who gave it."""


class ConfigError(UserError):
    """A configuration value that is impossible or not supported."""


class TraceError(UserError):
    """A trace that cannot be read.

    Parameters
    ----------
    problem
        What is wrong, the value seen, and what would be right.
    path, line
        Where: the file, and the line counted from 1 if there is one.
    """

    def __init__(self, problem: str, *, path: Path | str, line: int | None = None) -> None:
        where = f"{path}:{line}" if line is not None else f"{path}"
        super().__init__(f"{where}: {problem}")
        self.problem, self.path, self.line = problem, str(path), line


class UnknownNameError(UserError):
    """A name that is not in a registry; the message lists what is and guesses what was meant."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        near = get_close_matches(name, names, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        super().__init__(f"unknown {kind} {name!r}.{hint} Known: {', '.join(names)}.")
        self.kind, self.name = kind, name


class IllegalTransitionError(KvsimError, RuntimeError):
    """A block copy was told to make a step that the residency table does not have: a bug."""


class InvariantError(KvsimError, AssertionError):
    """`check()` recomputed a count or a state and found another: a bug."""


class MisuseError(KvsimError, RuntimeError):
    """A call that the contract forbids, such as releasing an attempt twice."""


class PolicyError(UserError):
    """An eviction policy broke its contract (see `kvsim.core.ports`)."""


class ContractError(UserError):
    """What others have written broke its contract.

    Parameters
    ----------
    sentence
        The sentence of the contract that it broke, word for word.
    problem
        What was seen.
    """

    def __init__(self, sentence: str, problem: str) -> None:
        super().__init__(f'{problem}. The contract: "{sentence}"')
        self.sentence, self.problem = sentence, problem


class BackendContractError(ContractError):
    """A backend broke its contract (see `kvsim.core.ports.Backend`)."""


class TransferError(KvsimError, RuntimeError):
    """Work that could not be carried out: a worker was lost, or says what makes no sense.

    Nothing is wrong with the input; a command ends with exit code 3.
    """


class StalledError(KvsimError, RuntimeError):
    """Work is left, nothing is under way and nothing will ever wake the engine: a bug."""

"""Finds a policy of the user's own by what is written on a command line: a module or a file."""

from __future__ import annotations

import sys
from contextlib import contextmanager
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path
from typing import TYPE_CHECKING, cast

from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

    from kvsim.policies.registry import PolicyMaker


def find_policy(text: str) -> str | PolicyMaker:
    """Return the class or function that `text` names, or `text` itself if it names a policy.

    Parameters
    ----------
    text
        `module:Name`, where the module may also be in the working folder; `path/to/file.py:Name`;
        or the name of a policy that is registered.

    Raises
    ------
    UserError
        If there is no such module or file, it cannot be imported, or has no such class.
    """
    where, colon, name = text.rpartition(":")
    if not colon:
        return text
    if not where or not name:
        raise UserError(f"policy {text!r} must be module:Name, path/to/file.py:Name or a name")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    found = getattr(module, name, None)
    if found is None:
        own = [each for each, value in vars(module).items() if isinstance(value, type)]
        near = get_close_matches(name, own, n=1)
        hint = f"; did you mean {near[0]!r}?" if near else ""
        raise UserError(f"policy {text!r}: {where} has no {name!r}{hint}")
    if not callable(found):
        raise UserError(
            f"policy {text!r}: {name} is {type(found).__name__} {found!r}, not a class or function"
        )
    return cast("PolicyMaker", found)


def policy_source(text: str) -> Path | None:
    """Return the file that defines the policy `find_policy` finds; None for one of a table.

    None also if there is no such file: then `find_policy` says what is wrong.
    """
    where, colon, _ = text.rpartition(":")
    if not colon:
        return None
    if where.endswith(".py"):
        return Path(where) if Path(where).is_file() else None
    with _working_folder_on_path():
        try:
            spec = find_spec(where)
        except (ImportError, ValueError, AttributeError):
            return None
    return None if spec is None or not spec.has_location else Path(str(spec.origin))


def _load_module(name: str) -> ModuleType:
    with _working_folder_on_path():
        try:
            return import_module(name)
        except ModuleNotFoundError as error:
            if error.name is not None and f"{name}.".startswith(f"{error.name}."):
                raise UserError(
                    f"no module {error.name!r} in {Path.cwd()} or among what is installed; a file"
                    " is named by its path, as in path/to/file.py:Name"
                ) from error
            raise _cannot_import(name, error) from error
        except Exception as error:  # user's code runs here: anything may be raised
            raise _cannot_import(name, error) from error


def _load_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UserError(f"no file {str(path)!r}")
    name = f"kvsim_policy_{path.stem}"
    spec = spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UserError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # user's code runs here: anything may be raised
        del sys.modules[name]
        raise _cannot_import(str(path), error) from error
    return module


def _cannot_import(what: str, error: Exception) -> UserError:
    line = f", line {error.lineno}" if isinstance(error, SyntaxError) else ""
    message = error.msg if isinstance(error, SyntaxError) else error
    return UserError(f"cannot import {what}{line}: {type(error).__name__}: {message}")


@contextmanager
def _working_folder_on_path() -> Iterator[None]:
    """Let modules in the working folder be found, as `python -m` does, while one is imported."""
    folder = str(Path.cwd())
    if folder in sys.path:
        yield
        return
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)

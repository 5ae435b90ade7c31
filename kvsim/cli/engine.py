"""`--engine NAME`: the rules of an engine where they are settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from argparse import Namespace, _ActionsContainer

    from kvsim.engines import EnginePreset


def add_engine_argument(parser: _ActionsContainer) -> None:
    """Add the option."""
    parser.add_argument(
        "--engine",
        metavar="NAME",
        help="the rules of an engine where they are settings: vllm, sglang, lmcache, fastdeploy",
    )


def take_engine(arguments: Namespace) -> EnginePreset | None:
    """Return the engine that is named; its rule for partial blocks goes behind `--partial`.

    Raises
    ------
    UnknownNameError
        If there is no engine of that name.
    """
    from kvsim.engines import find_engine

    if arguments.engine is None:
        return None
    engine = find_engine(arguments.engine)
    if arguments.partial is None:
        arguments.partial = engine.keys.value.value
    return engine

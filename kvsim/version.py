"""The version, in a module of its own so that every layer may name it."""

from typing import Final

__version__: Final = "0.1.0"

"""Text to token ids, for formats that contain conversations."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING, Protocol

from kvsim.errors import ConfigError, TraceError
from kvsim.trace.paths import checked_path, os_problem

if TYPE_CHECKING:
    from collections.abc import Sequence


class Tokenizer(Protocol):
    """Turns text into token ids, the same ids for the same text."""

    @property
    def name(self) -> str:
        """For people: what a trace says it was tokenized with."""

    def encode(self, text: str) -> Sequence[int]:
        """Return the token ids of `text`; changes nothing."""


class ByteTokenizer:
    """One token a byte of UTF-8. Prompts share what they share as text; lengths are about four
    times those of a language model's tokenizer (English).
    """  # noqa: D205  one sentence about what, one about what it costs

    __slots__ = ()

    name = "bytes"

    def encode(self, text: str) -> Sequence[int]:
        """Return the bytes of `text`."""
        return text.encode("utf-8", "surrogatepass")


class FileTokenizer:
    """A tokenizer of a model, from the `tokenizer.json` that comes with it.

    Parameters
    ----------
    path
        In the format of the package `tokenizers`, which the extra `kvsim[tokenizers]` installs.

    Raises
    ------
    ConfigError
        If that package is missing.
    TraceError
        If the file cannot be read or is no tokenizer.
    """

    __slots__ = ("_encode", "name")

    def __init__(self, path: str | PathLike[str]) -> None:
        file = checked_path(path)
        try:
            from tokenizers import Tokenizer as HuggingFaceTokenizer
        except ImportError as error:
            raise ConfigError(
                f"tokenizer {file} needs the package tokenizers: pip install 'kvsim[tokenizers]'"
            ) from error
        try:
            text = file.read_text(encoding="utf-8")
        except OSError as error:
            raise TraceError(os_problem(error), path=file) from error
        except UnicodeDecodeError as error:
            raise TraceError("not a tokenizer: not UTF-8 text", path=file) from error
        try:
            self._encode = HuggingFaceTokenizer.from_str(text).encode
        except Exception as error:  # the package raises nothing more precise
            raise TraceError(f"not a tokenizer: {error}", path=file) from error
        self.name = file.name

    def encode(self, text: str) -> Sequence[int]:
        """Return the token ids of `text`, without the special tokens that a prompt begins with."""
        ids: Sequence[int] = self._encode(text, add_special_tokens=False).ids
        return ids


def as_tokenizer(value: Tokenizer | str | PathLike[str] | None) -> Tokenizer:
    """Return the tokenizer that is meant: None or "bytes", the path of a file, or a tokenizer."""
    if value is None or value == "bytes":
        return ByteTokenizer()
    return FileTokenizer(value) if isinstance(value, str | PathLike) else value

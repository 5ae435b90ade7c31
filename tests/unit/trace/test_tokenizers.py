from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING

import pytest

from kvsim.errors import ConfigError, TraceError
from kvsim.trace import ByteTokenizer, FileTokenizer, load
from kvsim.trace.tokenizers import as_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


class Encoding:
    """What the package gives for a text."""

    def __init__(self, ids: list[int]) -> None:
        self.ids = ids


class StandIn:
    """What the package `tokenizers` calls Tokenizer, as far as it is used: a token a letter."""

    @staticmethod
    def from_str(text: str) -> StandIn:
        if not text.startswith("{"):
            raise Exception("expected value at line 1")
        return StandIn()

    def encode(self, text: str, *, add_special_tokens: bool) -> Encoding:
        assert not add_special_tokens
        return Encoding([ord(letter) for letter in text])


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType("tokenizers")
    module.Tokenizer = StandIn  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tokenizers", module)


def test_bytes_are_the_default() -> None:
    assert list(ByteTokenizer().encode("a\u00e9")) == [97, 195, 169]
    assert isinstance(as_tokenizer(None), ByteTokenizer)
    assert isinstance(as_tokenizer("bytes"), ByteTokenizer)


@pytest.mark.usefixtures("package")
def test_a_tokenizer_file_is_used(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    file.write_text("{}")
    tokenizer = FileTokenizer(file)
    assert (tokenizer.name, list(tokenizer.encode("a\u00e9"))) == ("tokenizer.json", [97, 233])
    talk = '[{"id":"a","conversations":[{"from":"human","value":"\u00e9\u00e9"},'
    talk += '{"from":"gpt","value":"x"}]}]'
    path = tmp_path / "talk"
    path.write_text(talk, encoding="utf-8")
    assert load(path, tokenizer=file).requests[0].num_input_tokens == 2
    assert load(path).requests[0].num_input_tokens == 4  # bytes


@pytest.mark.usefixtures("package")
def test_a_file_that_is_no_tokenizer_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.json"
    with pytest.raises(TraceError, match="no such file"):
        FileTokenizer(file)
    for content in (b"words", b"\xff"):
        file.write_bytes(content)
        with pytest.raises(TraceError, match="not a tokenizer"):
            FileTokenizer(file)


def test_without_the_package_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(ConfigError, match=r"needs the package tokenizers: pip install 'kvsim\[to"):
        FileTokenizer(tmp_path / "tokenizer.json")

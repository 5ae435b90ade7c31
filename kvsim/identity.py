"""Name blocks: chained keys over token ids, and dense ints for ids that a trace did not chain.

A block's key stands for the block *and everything before it*, because the KV of a token depends on
all tokens to its left. Two blocks share a key only if their prompts agree from the first token to
the block's last one, in tokens and in everything else that changes the KV (see `Extras`).

A key is a BLAKE2b hash of bytes that can be read in one way only: the parent's tag and key; the
number of extras, then each as kind, length and payload; the number of tokens, then the tokens. All
numbers have 8 bytes, little-endian.

Source: BLAKE2, RFC 7693; personalised, and keyed if a secret is given.
"""

from __future__ import annotations

import sys
from array import array
from dataclasses import dataclass
from hashlib import blake2b
from itertools import pairwise
from typing import TYPE_CHECKING

from kvsim.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Sequence

KEY_BYTES = 16
"""Bytes of a key. 128 bits: 2**40 blocks collide by chance with a probability of 2**-49."""

_TOKEN_BYTES = 8
_PERSON = b"kvsim block v1"  # another version of the encoding below must never give an equal key
_ROOT, _CHILD = b"\x00", b"\x01"
_SALT, _LORA, _WEIGHT_VERSION, _MEDIA = b"\x01", b"\x02", b"\x03", b"\x04"
_MAX_SECRET_BYTES = blake2b.MAX_KEY_SIZE


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaSpan:
    """Tokens of a prompt that stand for an image, a sound or a video.

    Their token ids are placeholders, equal for all media, so the content must be named.

    Parameters
    ----------
    media_id
        Names the content; the whole of it enters the keys. Not empty.
    first_token, num_tokens
        Where the placeholders are, counted from the first token of the prompt.
    """

    media_id: str
    first_token: int
    num_tokens: int

    def __post_init__(self) -> None:
        if not isinstance(self.media_id, str) or not self.media_id:
            raise UserError(f"media_id must be a string that is not empty, not {self.media_id!r}")
        _check_int("first_token of a media span", self.first_token, least=0)
        _check_int("num_tokens of a media span", self.num_tokens, least=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Extras:
    """What changes the KV of a prompt beside its tokens. None and "" mean absent.

    Each kind has a name space of its own: the salt "x" is not the LoRA "x".

    Parameters
    ----------
    salt
        Separates tenants that must not share blocks.
    lora
        Name of the adapter.
    weight_version
        Name of the weights, for servers that change them while running.
    media
        Spans of placeholder tokens; they may not overlap. Their order does not matter.
    """

    salt: str | None = None
    lora: str | None = None
    weight_version: str | None = None
    media: tuple[MediaSpan, ...] = ()

    def __post_init__(self) -> None:
        for name in ("salt", "lora", "weight_version"):
            value = getattr(self, name)
            if value is not None and not isinstance(value, str):
                raise UserError(f"{name} must be a string or None, not {value!r}")
        spans = sorted(self.media, key=lambda span: span.first_token)
        for left, right in pairwise(spans):
            if left.first_token + left.num_tokens > right.first_token:
                raise UserError(f"media spans overlap at token {right.first_token}")


def chain_keys(
    tokens: Sequence[int],
    block_size: int,
    *,
    extras: Extras | None = None,
    parent: bytes | None = None,
    first_token: int = 0,
    secret: bytes = b"",
) -> list[bytes]:
    """Return the keys of the full blocks of `tokens`, root first; changes nothing.

    There are `len(tokens) // block_size` keys of `KEY_BYTES` each, the same in every process.
    A prompt may be named in pieces: pass the last key so far as `parent` and the position of
    `tokens[0]` as `first_token`, and the keys are those of the whole prompt.

    Parameters
    ----------
    tokens, block_size
        Token ids, signed 64-bit integers; tokens a block.
    extras
        What else the KV depends on. A media span enters each block that it overlaps; the others
        enter at the root block and reach the rest through the chain.
    parent, first_token
        Key of the block before `tokens[0]`, and the position of `tokens[0]` in the prompt.
    secret
        At most 64 bytes. With it, nobody who lacks it can look for prompts with equal keys.

    Raises
    ------
    UserError
        If a token is not a 64-bit integer or an argument is impossible.
    """
    _check_place(block_size, parent, first_token, secret, has_media=bool(extras and extras.media))
    encoded = _encode_tokens(tokens)
    width = block_size * _TOKEN_BYTES
    blocks = [encoded[end - width : end] for end in range(width, len(encoded) + 1, width)]
    added = _media_of_blocks(extras, first_token // block_size, len(blocks), block_size)
    link = _ROOT if parent is None else _CHILD + parent
    if parent is None:
        added[0] = _root_extras(extras) + added.get(0, [])
    empty = blake2b(digest_size=KEY_BYTES, key=secret, person=_PERSON)
    keys = []
    for index, block in enumerate(blocks):
        own = added.get(index, [])
        digest = empty.copy()
        digest.update(b"".join((link, _unsigned(len(own)), *own, _unsigned(block_size), block)))
        keys.append(digest.digest())
        link = _CHILD + keys[-1]
    return keys


class Interner:
    """Gives chained identities to ids that name a block's content but not its prefix.

    The same id after another parent gets another number. Numbers are dense, from 0, in the order
    in which they are first seen.
    """

    __slots__ = ("_numbers",)

    def __init__(self) -> None:
        self._numbers: dict[tuple[int | None, Hashable], int] = {}

    def __len__(self) -> int:
        """Return how many numbers have been given out."""
        return len(self._numbers)

    def chain(self, ids: Iterable[Hashable]) -> list[int]:
        """Return one number for each of `ids`, root first, giving out new ones as needed."""
        numbers = self._numbers
        parent: int | None = None
        path = []
        for each in ids:
            parent = numbers.setdefault((parent, each), len(numbers))
            path.append(parent)
        return path


def has_unique_prefixes(paths: Iterable[Sequence[Hashable]]) -> bool:
    """Return whether each id has one and the same parent wherever it occurs.

    If so, ids may be used as keys as they are; if not, they need an `Interner`. An id that occurs
    twice in one path always has two parents.
    """
    parents: dict[Hashable, Hashable] = {}
    root = object()
    for path in paths:
        before = [root, *path[:-1]]
        if list(map(parents.setdefault, path, before)) != before[: len(path)]:
            return False
    return True


def _check_int(name: str, value: int, *, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UserError(f"{name} must be an integer of at least {least}, not {value!r}")


def _check_place(
    block_size: int, parent: bytes | None, first_token: int, secret: bytes, *, has_media: bool
) -> None:
    _check_int("block_size", block_size, least=1)
    _check_int("first_token", first_token, least=0)
    if first_token % block_size:
        raise UserError(f"first_token must be a multiple of {block_size}, not {first_token}")
    if parent is None and first_token:
        raise UserError(f"tokens from position {first_token} need the key of their parent")
    if parent is not None:
        if not isinstance(parent, bytes) or len(parent) != KEY_BYTES:
            raise UserError(f"parent must be a key of {KEY_BYTES} bytes, not {parent!r}")
        if has_media and not first_token:
            raise UserError("media after a parent need first_token, the position of tokens[0]")
    if len(secret) > _MAX_SECRET_BYTES:
        raise UserError(f"secret must have at most {_MAX_SECRET_BYTES} bytes, not {len(secret)}")


def _encode_tokens(tokens: Sequence[int]) -> bytes:
    try:
        # iter(): a bytes argument would be taken as the array's memory, not as its items
        encoded = array("q", iter(tokens))
    except (TypeError, OverflowError) as error:
        raise UserError(f"token ids must be signed 64-bit integers: {error}") from error
    if sys.byteorder == "big":
        encoded.byteswap()
    return encoded.tobytes()


def _unsigned(value: int) -> bytes:
    return value.to_bytes(8, "little")


def _extra(kind: bytes, payload: bytes) -> bytes:
    return kind + _unsigned(len(payload)) + payload


def _text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")  # every str has bytes, and no two have the same


def _root_extras(extras: Extras | None) -> list[bytes]:
    if extras is None:
        return []
    kinds = (
        (_SALT, extras.salt),
        (_LORA, extras.lora),
        (_WEIGHT_VERSION, extras.weight_version),
    )
    return [_extra(kind, _text(value)) for kind, value in kinds if value]


def _media_of_blocks(
    extras: Extras | None, first_block: int, num_blocks: int, block_size: int
) -> dict[int, list[bytes]]:
    """Return what media add to each block, by its index among the `num_blocks` from `first_block`.

    Payload: where the block begins within the span (negative if before it), how many of the
    block's tokens belong to the span, and the whole media id.

        tokens   0   4   8   12  16
        blocks   |-a-|-b-|-c-|-d-|     the span holds tokens 6 to 13
        span           |-------|       b: offset -2, 2 tokens; c: 2, 4 tokens; d: 6, 2 tokens
    """
    blocks: dict[int, list[bytes]] = {}
    spans = sorted(extras.media, key=lambda span: span.first_token) if extras else []
    for span in spans:
        end_token = span.first_token + span.num_tokens
        first = max(span.first_token // block_size, first_block)
        last = min((end_token - 1) // block_size, first_block + num_blocks - 1)
        media_id = _text(span.media_id)
        for block in range(first, last + 1):
            start = block * block_size
            num_inside = min(end_token, start + block_size) - max(span.first_token, start)
            offset = (start - span.first_token).to_bytes(8, "little", signed=True)
            payload = b"".join((offset, _unsigned(num_inside), media_id))
            blocks.setdefault(block - first_block, []).append(_extra(_MEDIA, payload))
    return blocks

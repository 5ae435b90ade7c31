from __future__ import annotations

import os
import subprocess
import sys
from hashlib import blake2b

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import UserError
from kvsim.identity import (
    KEY_BYTES,
    Extras,
    Interner,
    MediaSpan,
    chain_keys,
    has_unique_prefixes,
)

PLACEHOLDER = 7777
KEYS_OF_FOUR_ABSENCES = """
from kvsim.identity import Extras, chain_keys
tokens = range(1, 9)
for extras in (Extras(salt=None), None, Extras(media=(), lora=""), Extras(salt="None")):
    print([key.hex() for key in chain_keys(tokens, 4, extras=extras)])
"""


def common_blocks(left: list[bytes], right: list[bytes]) -> int:
    """Return how many leading keys are equal."""
    equal = [a == b for a, b in zip(left, right, strict=False)]
    return equal.index(False) if False in equal else len(equal)


def media(*spans: tuple[str, int, int]) -> Extras:
    return Extras(
        media=tuple(MediaSpan(media_id=m, first_token=f, num_tokens=n) for m, f, n in spans)
    )


def test_only_full_blocks_have_keys() -> None:
    # floor(0 / 4), floor(3 / 4), floor(4 / 4), floor(9 / 4)
    assert [len(chain_keys(range(n), 4)) for n in (0, 3, 4, 9)] == [0, 0, 1, 2]
    assert {len(key) for key in chain_keys(range(9), 4)} == {KEY_BYTES}


def test_the_hashed_bytes_are_the_documented_ones() -> None:
    def key(*pieces: bytes) -> bytes:
        return blake2b(b"".join(pieces), digest_size=16, person=b"kvsim block v1").digest()

    def u64(value: int) -> bytes:
        return value.to_bytes(8, "little")

    salt = b"\x01" + u64(2) + b"ab"
    root = key(b"\x00", u64(1), salt, u64(2), u64(5), u64(2**64 - 1))  # token -1 in 8 bytes
    child = key(b"\x01", root, u64(0), u64(2), u64(6), u64(7))
    assert chain_keys([5, -1, 6, 7], 2, extras=Extras(salt="ab")) == [root, child]


def test_tokens_with_equal_python_hashes_have_different_keys() -> None:
    assert hash((-1, 1, 2, 3)) == hash((-2, 1, 2, 3))
    assert chain_keys([-1, 1, 2, 3], 4) != chain_keys([-2, 1, 2, 3], 4)


def test_a_block_is_named_with_its_whole_prefix() -> None:
    first, second = chain_keys([1, 2, 3, 4, 9, 9, 9, 9], 4), chain_keys([1, 2, 3, 5, 9, 9, 9, 9], 4)
    assert common_blocks(first, second) == 0
    assert first[1] != second[1]  # equal tokens, another parent
    assert first[1] != chain_keys([9, 9, 9, 9], 4)[0]


def test_token_boundaries_and_block_sizes_are_part_of_a_key() -> None:
    assert chain_keys([1, 23], 2) != chain_keys([12, 3], 2)
    assert chain_keys([256], 1) != chain_keys([0, 1], 2)  # same significant bytes
    assert chain_keys(range(8), 8)[0] not in chain_keys(range(8), 4)


def test_salt_lora_weights_and_media_are_separate_name_spaces() -> None:
    tokens = range(1, 10)
    kinds = [
        Extras(),
        Extras(salt="x"),
        Extras(lora="x"),
        Extras(weight_version="x"),
        media(("x", 0, 4)),
        Extras(salt="x", lora="x"),
    ]
    keys = [chain_keys(tokens, 4, extras=extras) for extras in kinds]
    assert len({key for path in keys for key in path}) == 2 * len(kinds)  # no block is shared
    assert keys[1] == chain_keys(tokens, 4, extras=Extras(salt="x"))


def test_the_salt_reaches_every_block_through_the_chain() -> None:
    salted, plain = chain_keys(range(40), 4, extras=Extras(salt="x")), chain_keys(range(40), 4)
    assert not set(salted) & set(plain)


@pytest.mark.parametrize("absent", [Extras(), Extras(salt=""), Extras(salt=None, lora="")])
def test_none_absent_and_empty_are_the_same(absent: Extras) -> None:
    assert chain_keys(range(8), 4, extras=absent) == chain_keys(range(8), 4)
    assert chain_keys(range(8), 4, extras=Extras(salt="None")) != chain_keys(range(8), 4)


class TestMedia:
    tokens = (1, 2, 3, *[PLACEHOLDER] * 5, 9)  # 9 tokens, placeholders at 3 to 7; 2 full blocks

    def test_another_image_shares_nothing_from_its_first_block_on(self) -> None:
        first = chain_keys(self.tokens, 4, extras=media(("m1", 3, 5)))
        # block 0 holds tokens 0 to 3, so it has a placeholder already
        assert common_blocks(first, chain_keys(self.tokens, 4, extras=media(("m2", 3, 5)))) == 0
        assert common_blocks(first, chain_keys(self.tokens, 4, extras=media(("m1", 3, 5)))) == 2

    def test_the_blocks_before_the_image_are_shared(self) -> None:
        tokens = (1, 2, 3, 4, *[PLACEHOLDER] * 4, 9)
        first = chain_keys(tokens, 4, extras=media(("m1", 4, 4)))
        assert common_blocks(first, chain_keys(tokens, 4, extras=media(("m2", 4, 4)))) == 1
        assert common_blocks(first, chain_keys(tokens, 4)) == 1

    def test_the_whole_media_id_counts(self) -> None:
        ids = ("a" * 64, "b" + "a" * 63, "a" * 63 + "b")  # differ in the first or last digit only
        keys = [chain_keys(self.tokens, 4, extras=media((m, 3, 5)))[0] for m in ids]
        assert len(set(keys)) == 3

    def test_the_place_within_the_image_counts(self) -> None:
        tokens = [PLACEHOLDER] * 8
        whole = chain_keys(tokens, 4, extras=media(("m", 0, 8)))
        twice = chain_keys(tokens, 4, extras=media(("m", 0, 4), ("m", 4, 4)))
        assert common_blocks(whole, twice) == 1

    def test_where_the_image_ends_counts_in_its_last_block_only(self) -> None:
        tokens = [PLACEHOLDER] * 8
        six, seven = (chain_keys(tokens, 4, extras=media(("m", 0, n))) for n in (6, 7))
        assert common_blocks(six, seven) == 1

    def test_the_order_in_which_spans_are_given_does_not_matter(self) -> None:
        spans = [("m", 0, 2), ("n", 2, 2)]
        tokens = [PLACEHOLDER] * 4
        assert chain_keys(tokens, 4, extras=media(*spans)) == chain_keys(
            tokens, 4, extras=media(*reversed(spans))
        )


def test_keys_are_the_same_in_every_process() -> None:
    outputs = set()
    for seed in (None, "1", "2"):
        environment = {k: v for k, v in os.environ.items() if k != "PYTHONHASHSEED"}
        environment |= {"PYTHONHASHSEED": seed} if seed else {}
        environment["PYTHONPATH"] = os.pathsep.join(sys.path)
        ran = subprocess.run(
            [sys.executable, "-c", KEYS_OF_FOUR_ABSENCES],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        outputs.add(ran.stdout)
    (output,) = outputs
    none, absent, empty, text = output.splitlines()
    assert none == absent == empty != text
    assert none == str([key.hex() for key in chain_keys(range(1, 9), 4)])


def test_a_prompt_named_in_pieces_has_the_keys_of_the_whole() -> None:
    tokens = tuple(range(1, 18))
    extras = Extras(salt="s", media=media(("m", 3, 9)).media)
    whole = chain_keys(tokens, 4, extras=extras)
    for pieces in ((6, 6, 4), (16,), (4, 12), (1,) * 16):
        keys: list[bytes] = []
        end = 0
        for piece in pieces:
            end += piece
            done = 4 * len(keys)
            keys += chain_keys(
                tokens[done:end],
                4,
                extras=extras,
                parent=keys[-1] if keys else None,
                first_token=done,
            )
        assert keys == whole[:4]
    # chunks of 6, 6 and 4 tokens complete floor(6 / 4), floor(12 / 4) and floor(16 / 4) blocks
    assert [len(chain_keys(tokens[:n], 4, extras=extras)) for n in (6, 12, 16)] == [1, 3, 4]
    assert common_blocks(whole, chain_keys(tokens[:16], 4, extras=extras)) == 4


def test_a_secret_gives_other_keys() -> None:
    keys = [chain_keys(range(4), 4, secret=secret)[0] for secret in (b"", b"a", b"b", b"a\0")]
    assert len(set(keys)) == 4


@pytest.mark.parametrize(
    ("tokens", "problem"),
    [
        ([1, 2**63], "64-bit"),
        ([-(2**63) - 1], "64-bit"),
        ([1.0], "64-bit"),
        ("text", "64-bit"),
        ([None], "64-bit"),
    ],
)
def test_a_token_that_is_no_64_bit_integer_is_refused(tokens: list[int], problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        chain_keys(tokens, 1)


def test_tokens_of_any_sequence_type_are_taken_by_value() -> None:
    assert chain_keys(bytes([1, 2]), 2) == chain_keys([1, 2], 2)
    assert chain_keys([-(2**63), 2**63 - 1], 1) != chain_keys([2**63 - 1, -(2**63)], 1)


def test_impossible_arguments_are_refused() -> None:
    key = chain_keys([1, 2], 2)[0]
    with pytest.raises(UserError, match="block_size must be an integer of at least 1, not 0"):
        chain_keys([1], 0)
    with pytest.raises(UserError, match="parent must be a key of 16 bytes"):
        chain_keys([1, 2], 2, parent=b"short", first_token=2)
    with pytest.raises(UserError, match="multiple of 2, not 3"):
        chain_keys([1, 2], 2, parent=key, first_token=3)
    with pytest.raises(UserError, match="need the key of their parent"):
        chain_keys([1, 2], 2, first_token=2)
    with pytest.raises(UserError, match="need first_token"):
        chain_keys([1, 2], 2, parent=key, extras=media(("m", 2, 1)))
    with pytest.raises(UserError, match="at most 64 bytes, not 65"):
        chain_keys([1, 2], 2, secret=bytes(65))


def test_impossible_extras_are_refused() -> None:
    with pytest.raises(UserError, match="media spans overlap at token 3"):
        media(("m", 0, 4), ("n", 3, 1))
    with pytest.raises(UserError, match="media_id must be a string that is not empty"):
        media(("", 0, 4))
    with pytest.raises(UserError, match="num_tokens of a media span"):
        media(("m", 0, 0))
    with pytest.raises(UserError, match="first_token of a media span"):
        media(("m", -1, 1))
    with pytest.raises(UserError, match="salt must be a string or None, not 5"):
        Extras(salt=5)  # type: ignore[arg-type]


NAMES = st.sampled_from([None, "", "x", "y", "xy", "\ud800"])
PROMPTS = st.lists(st.integers(-2, 2), min_size=0, max_size=9)


@st.composite
def any_extras(draw: st.DrawFn) -> Extras:
    spans = []
    end = 0
    for media_id in draw(st.lists(st.sampled_from(["x", "y", "xy"]), max_size=2)):
        first = end + draw(st.integers(0, 3))
        num = draw(st.integers(1, 5))
        spans.append((media_id, first, num))
        end = first + num
    return Extras(
        salt=draw(NAMES),
        lora=draw(NAMES),
        weight_version=draw(NAMES),
        media=media(*spans).media,
    )


def meaning(tokens: list[int], extras: Extras, end: int) -> object:
    """Return all that the KV of tokens[:end] depends on, without any hashing."""
    places: list[object] = [None] * end
    for span in extras.media:
        for offset in range(span.num_tokens):
            if span.first_token + offset < end:
                places[span.first_token + offset] = (span.media_id, offset)
    names = [name or None for name in (extras.salt, extras.lora, extras.weight_version)]
    return tokens[:end], places, names


@given(PROMPTS, any_extras(), PROMPTS, any_extras(), st.integers(1, 3), st.booleans())
def test_keys_are_equal_exactly_where_prefix_and_extras_are(
    first: list[int],
    first_extras: Extras,
    second: list[int],
    second_extras: Extras,
    block_size: int,
    related: bool,
) -> None:
    if related:  # unrelated prompts rarely share a block
        second = first[:5] + second
        second_extras = Extras(salt=first_extras.salt, media=first_extras.media)
    first_keys = chain_keys(first, block_size, extras=first_extras)
    second_keys = chain_keys(second, block_size, extras=second_extras)
    for i, left in enumerate(first_keys):
        for j, right in enumerate(second_keys):
            alike = meaning(first, first_extras, (i + 1) * block_size) == meaning(
                second, second_extras, (j + 1) * block_size
            )
            assert (left == right) is alike


class TestInterner:
    def test_an_id_after_another_parent_gets_another_number(self) -> None:
        interner = Interner()
        # (root, 5) 0, (0, 6) 1, (1, 5) 2
        assert interner.chain([5, 6, 5]) == [0, 1, 2]
        # (root, 6) is new: 3; (3, 6) is new: 4
        assert interner.chain([6, 6]) == [3, 4]
        assert interner.chain([5, 6, 7]) == [0, 1, 5]
        assert len(interner) == 6
        assert interner.chain([]) == []

    def test_texts_and_numbers_differ(self) -> None:
        interner = Interner()
        assert interner.chain([1]) != interner.chain(["1"])

    @given(st.lists(st.lists(st.integers(0, 3), max_size=5), max_size=6))
    def test_numbers_are_equal_exactly_where_prefixes_are(self, paths: list[list[int]]) -> None:
        interner = Interner()
        chained = [interner.chain(path) for path in paths]
        prefix_of = {
            number: tuple(path[: i + 1])
            for path, numbers in zip(paths, chained, strict=True)
            for i, number in enumerate(numbers)
        }
        prefixes = {tuple(path[: i + 1]) for path in paths for i in range(len(path))}
        assert len(prefix_of) == len(prefixes) == len(interner)
        assert set(prefix_of.values()) == prefixes
        assert set(prefix_of) == set(range(len(interner)))
        assert has_unique_prefixes(chained)


@pytest.mark.parametrize(
    ("paths", "unique"),
    [
        ([], True),
        ([[]], True),
        ([[1, 2], [1, 3], [4]], True),
        ([[1, 2], [3, 2]], False),  # 2 has the parents 1 and 3
        ([[1, 2], [2]], False),  # 2 is a root and a child
        ([[1, 1]], False),
        ([[1, 2, 1]], False),
    ],
)
def test_ids_are_prefixes_only_if_each_has_one_parent(paths: list[list[int]], unique: bool) -> None:
    assert has_unique_prefixes(paths) is unique

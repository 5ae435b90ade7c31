from __future__ import annotations

from kvsim.trace.synthesis.prompts import Popularity, Writer, exponential, happens, length


class Scripted:
    """Draws the numbers it is given."""

    def __init__(self, *values: float) -> None:
        self._values = list(values)

    def random(self) -> float:
        return self._values.pop(0)

    def randrange(self, stop: int, /) -> int:
        raise NotImplementedError(f"only random() is drawn, not one of {stop}")


def test_prompts_share_the_blocks_within_the_texts_they_both_begin_with() -> None:
    writer = Writer(10)
    system = writer.add_shared(writer.empty, "system", 25)  # blocks 0 and 1, 5 tokens beyond
    first = writer.add_own(system, 15)  # 40 tokens: the third block reaches into what is its own
    second = writer.add_own(writer.add_shared(writer.empty, "system", 25), 4)  # 29 tokens
    assert (system.keys, system.num_tokens) == ([0, 1], 25)
    assert (first.keys, first.num_tokens) == ([0, 1, 2, 3], 40)
    assert (second.keys, second.num_tokens) == ([0, 1], 29)


def test_a_shared_text_is_another_one_behind_another_prompt() -> None:
    writer = Writer(10)
    a = writer.add_shared(writer.empty, "a", 10)
    b = writer.add_shared(writer.empty, "b", 10)
    assert writer.add_shared(a, "x", 10).keys == [0, 2]
    assert writer.add_shared(b, "x", 10).keys == [1, 3]
    assert writer.add_shared(a, "x", 10).keys == [0, 2]


def test_the_more_popular_of_two_is_drawn_twice_as_often_by_zipfs_law() -> None:
    # weights 1 and 1/2: the first up to 2/3 of the range
    popularity = Popularity(2, 1, Scripted(0.0, 0.66, 0.67, 0.999))
    assert [popularity.draw() for _ in range(4)] == [0, 0, 1, 1]


def test_lengths_are_half_the_sum_of_two_exponentials_and_at_least_one() -> None:
    # -100 ln(1 - 0.5) = 69.3 -> 69; -100 ln(1 - 0.9) = 230.3 -> 230; (69 + 230) // 2 = 149
    assert length(Scripted(0.5, 0.9), 100) == 149
    assert length(Scripted(0.0, 0.0), 100) == 1
    assert exponential(Scripted(0.5), 100) == 69


def test_never_and_always_are_percents_too() -> None:
    assert not happens(Scripted(0.0), 0)
    assert happens(Scripted(0.999999), 100)

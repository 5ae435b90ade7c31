"""Retrieval: questions behind passages that others get too, in whatever order they were found."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.trace.specs import check_number
from kvsim.trace.synthesis.prompts import Popularity, exponential, happens, length
from kvsim.trace.synthesis.sessions import Turn
from kvsim.trace.synthesis.starts import Poisson, Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.trace.synthesis.prompts import Prompt, Writer
    from kvsim.trace.synthesis.sessions import Session
    from kvsim.types import Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class Rag:
    """Users who ask a collection of documents. The sample `rag` is this, seed 2.

    A prompt is the system prompt, the passages found, the talk so far, the question: the order that
    the public trace RAGPulse records. Passages are popular or not, so different prompts hold
    the same ones; but a prefix cache hits them only as far as they also stand in the same order,
    and a follow-up that finds other passages loses all that was behind the old ones.

    Parameters
    ----------
    num_passages, exponent
        In the collection; the k-th most popular is found in proportion to k ** -exponent.
    passages
        A prompt's: so many different ones.
    sorted_percent
        So many of 100 prompts have their passages the most popular first, a fixed order; the
        others as they were drawn.
    mean_passage_tokens, system_tokens, mean_question_tokens, mean_answer_tokens
        Lengths; means are of half the sum of two exponentials.
    mean_turns
        Questions a session (geometric).
    same_percent
        So many of 100 follow-ups find the passages of the question before, in the same order.
    mean_think_ms
        From the end of an answer to the next question (exponential).
    answer_token_ms
        How long the user waits for each token of an answer.
    """

    num_passages: int = 1_000
    exponent: float = 1.0  # Zipf's law in its plain form
    passages: int = 4
    sorted_percent: float = 0.0  # retrievers rank by relevance
    mean_passage_tokens: int = 400  # under the 512 tokens of one RAGPulse passage
    system_tokens: int = 500
    mean_question_tokens: int = 60
    mean_answer_tokens: int = 200
    mean_turns: float = 1.5
    same_percent: float = 50.0
    mean_think_ms: int = 30_000
    answer_token_ms: int = 20

    def __post_init__(self) -> None:
        check_number("num_passages of rag", self.num_passages, least=1, most=1e6, whole=True)
        check_number("exponent of rag", self.exponent, most=10)
        # half of them at most: drawing different ones takes long when few are left
        most = max(1, self.num_passages // 2)
        check_number("passages of rag", self.passages, least=1, most=min(most, 1000), whole=True)
        for name in ("sorted_percent", "same_percent"):
            check_number(f"{name} of rag", getattr(self, name), most=100)
        for name in (
            *("mean_passage_tokens", "system_tokens", "mean_question_tokens"),
            "mean_answer_tokens",
        ):
            check_number(f"{name} of rag", getattr(self, name), least=1, most=1e7, whole=True)
        check_number("mean_turns of rag", self.mean_turns, least=1, most=1e6)
        for name in ("mean_think_ms", "answer_token_ms"):
            check_number(f"{name} of rag", getattr(self, name), most=1e9, whole=True)

    @property
    def starts(self) -> Starts:
        """Sessions begin 0.5 s apart."""
        return Starts(process=Poisson(gap_s=0.5))

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Session]:
        """See `Workload`."""
        lengths = [length(rng, self.mean_passage_tokens) for _ in range(self.num_passages)]
        popularity = Popularity(self.num_passages, self.exponent, rng)
        system = writer.add_shared(writer.empty, "system", self.system_tokens)

        def with_passages() -> Prompt:
            prompt = system
            for passage in self._find(popularity, rng):
                prompt = writer.add_shared(prompt, passage, lengths[passage])
            return prompt

        return lambda: self._turns(with_passages, writer, rng)

    def _find(self, popularity: Popularity, rng: Rng) -> list[int]:
        found: dict[int, None] = {}
        tries = 0
        while len(found) < self.passages:
            tries += 1
            if tries > 20 * self.passages:  # a steep law: the most popular of the others will do
                found.setdefault(next(i for i in range(self.num_passages) if i not in found))
                continue
            found.setdefault(popularity.draw())
        return sorted(found) if happens(rng, self.sorted_percent) else list(found)

    def _turns(
        self, with_passages: Callable[[], Prompt], writer: Writer, rng: Rng
    ) -> Iterator[Turn]:
        prompt: Prompt | None = None
        answer = told = 0  # tokens of the last answer, and of all questions and answers
        pause_ms: int | None = 0
        while pause_ms is not None:
            question = length(rng, self.mean_question_tokens)
            if prompt is not None and happens(rng, self.same_percent):
                prompt = writer.add_own(prompt, answer + question)
            else:
                prompt = writer.add_own(with_passages(), told + question)
            answer = length(rng, self.mean_answer_tokens)
            told += question + answer
            pause_ms = None
            if rng.random() >= 1 / self.mean_turns:
                pause_ms = exponential(rng, self.mean_think_ms)
            yield Turn(prompt, answer, answer * self.answer_token_ms, pause_ms)

"""Chats: shared system prompts, several turns a session, documents, pauses for thought."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError
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
class Chat:
    """People who talk with an assistant. The sample `chat` is this, seed 1.

    A prompt is the system prompt, all messages and answers before, and the new message, so it
    extends the prompt of the turn before. The defaults look like a chat service; they are fitted
    to none.

    Parameters
    ----------
    num_system_prompts
        How many there are; the k-th most popular is drawn in proportion to 1/k.
    mean_system_tokens, mean_message_tokens, mean_answer_tokens
        Mean lengths; each is half the sum of two exponentials, which makes very short ones rare.
    mean_document_tokens, document_percent
        So many of 100 messages also carry a document, of this mean length.
    mean_turns
        Turns a session (geometric).
    mean_think_ms, min_think_ms
        Between the end of an answer and the next turn: the minimum and an exponential; the mean
        is of their sum.
    answer_token_ms
        How long the user waits for each token of an answer.
    """

    num_system_prompts: int = 8
    mean_system_tokens: int = 900
    mean_message_tokens: int = 120
    mean_answer_tokens: int = 350
    mean_document_tokens: int = 4_000
    document_percent: int = 20
    mean_turns: float = 3.0
    mean_think_ms: int = 30_000
    min_think_ms: int = 2_000
    answer_token_ms: int = 20  # 50 tokens a second, about a fast reader's pace

    def __post_init__(self) -> None:
        check_number("num_system_prompts of chat", self.num_system_prompts, least=1, most=1e6,
                     whole=True)  # fmt: skip
        for name in ("system", "message", "answer", "document"):
            value = getattr(self, f"mean_{name}_tokens")
            check_number(f"mean_{name}_tokens of chat", value, least=1, most=1e7, whole=True)
        check_number("document_percent of chat", self.document_percent, most=100, whole=True)
        check_number("mean_turns of chat", self.mean_turns, least=1, most=1e6)
        for name in ("mean_think_ms", "min_think_ms", "answer_token_ms"):
            check_number(f"{name} of chat", getattr(self, name), most=1e9, whole=True)
        if self.min_think_ms > self.mean_think_ms:
            raise ConfigError(
                f"min_think_ms of chat must be at most mean_think_ms ({self.mean_think_ms}),"
                f" not {self.min_think_ms}"
            )

    @property
    def starts(self) -> Starts:
        """Sessions begin 0.8 s apart."""
        return Starts(process=Poisson(gap_s=0.8))

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Session]:
        """See `Workload`."""
        lengths = [length(rng, self.mean_system_tokens) for _ in range(self.num_system_prompts)]
        popularity = Popularity(self.num_system_prompts, 1, rng)

        def begin() -> Session:
            system = popularity.draw()
            return self._turns(
                writer.add_shared(writer.empty, system, lengths[system]), writer, rng
            )

        return begin

    def _turns(self, prompt: Prompt, writer: Writer, rng: Rng) -> Iterator[Turn]:
        pause_ms: int | None = 0
        num_answered = 0
        while pause_ms is not None:
            message = length(rng, self.mean_message_tokens)
            if happens(rng, self.document_percent):
                message += length(rng, self.mean_document_tokens)
            prompt = writer.add_own(prompt, num_answered + message)
            num_answered = length(rng, self.mean_answer_tokens)
            pause_ms = None
            if rng.random() >= 1 / self.mean_turns:
                think_ms = exponential(rng, self.mean_think_ms - self.min_think_ms)
                pause_ms = self.min_think_ms + think_ms
            yield Turn(prompt, num_answered, num_answered * self.answer_token_ms, pause_ms)

"""Single requests behind one of many shared system prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.trace.specs import check_number
from kvsim.trace.synthesis.prompts import Popularity, length
from kvsim.trace.synthesis.sessions import Turn
from kvsim.trace.synthesis.starts import Poisson, Starts

if TYPE_CHECKING:
    from collections.abc import Callable

    from kvsim.trace.synthesis.prompts import Writer
    from kvsim.trace.synthesis.sessions import Session
    from kvsim.types import Rng


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemPrompts:
    """Programs that send each input with their instructions and examples: no second turn.

    All sharing is of whole system prompts, so a cache is worth what it holds of the popular ones.
    The defaults are chosen so that this takes some hundred blocks; they are fitted to nothing.

    Parameters
    ----------
    num_system_prompts
        How many there are.
    exponent
        The k-th most popular is drawn in proportion to k ** -exponent; 0: all alike.
    mean_system_tokens, mean_message_tokens, mean_answer_tokens
        Mean lengths; each is half the sum of two exponentials.
    answer_token_ms
        Time for each token of an answer; nothing waits for it here.
    """

    num_system_prompts: int = 200
    exponent: float = 1.0  # Zipf's law in its plain form
    mean_system_tokens: int = 1_500
    mean_message_tokens: int = 300
    mean_answer_tokens: int = 200
    answer_token_ms: int = 20

    def __post_init__(self) -> None:
        what = "of system-prompts"
        num = self.num_system_prompts
        check_number(f"num_system_prompts {what}", num, least=1, most=1e6, whole=True)
        check_number(f"exponent {what}", self.exponent, most=10)
        for name in ("mean_system_tokens", "mean_message_tokens", "mean_answer_tokens"):
            check_number(f"{name} {what}", getattr(self, name), least=1, most=1e7, whole=True)
        check_number(f"answer_token_ms {what}", self.answer_token_ms, most=1e6, whole=True)

    @property
    def starts(self) -> Starts:
        """Requests arrive 0.2 s apart."""
        return Starts(process=Poisson(gap_s=0.2))

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Session]:
        """See `Workload`."""
        lengths = [length(rng, self.mean_system_tokens) for _ in range(self.num_system_prompts)]
        popularity = Popularity(self.num_system_prompts, self.exponent, rng)

        def begin() -> Session:
            system = popularity.draw()
            prompt = writer.add_shared(writer.empty, system, lengths[system])
            prompt = writer.add_own(prompt, length(rng, self.mean_message_tokens))
            answer = length(rng, self.mean_answer_tokens)
            return iter([Turn(prompt, answer, answer * self.answer_token_ms, None)])

        return begin

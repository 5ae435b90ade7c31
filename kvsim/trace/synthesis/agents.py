"""Agents: a loop of tool calls whose results pile up, and sub-agents with prompts of their own."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final

from kvsim.trace.specs import check_number
from kvsim.trace.synthesis.prompts import Popularity, exponential, happens, length
from kvsim.trace.synthesis.sessions import Turn
from kvsim.trace.synthesis.starts import Poisson, Starts

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kvsim.trace.synthesis.prompts import Prompt, Writer
    from kvsim.trace.synthesis.sessions import Session
    from kvsim.types import Rng

_TOKENS: Final = (
    *("mean_tools_tokens", "mean_task_tokens", "mean_result_tokens", "mean_answer_tokens"),
    "mean_summary_tokens",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Agents:
    """Coding agents and their like. The sample `agents` is this, seed 3.

    A session is a task. Each step is a request: the agent's instructions and tools, the task, and
    all steps before with the results of their tools; so each extends the one before. At some steps
    it calls sub-agents, which run side by side, each with the prompt of its own kind and a task,
    and waits for the last; their summaries are the result of that step. When a prompt would grow
    beyond the context, what was said is replaced by a summary, and only the tools stay shared.

    Parameters
    ----------
    num_kinds
        Agents with different tools; the k-th most popular is drawn in proportion to 1/k. There are
        as many kinds of sub-agents.
    mean_tools_tokens
        Instructions and tools of a kind.
    mean_task_tokens, mean_result_tokens, mean_answer_tokens, mean_summary_tokens
        Lengths; all means of tokens are of half the sum of two exponentials.
    mean_steps
        Requests a task (geometric); a sub-agent has half as many.
    subagent_percent, mean_subagents
        So many of 100 steps of a task call sub-agents, then so many (geometric).
    mean_tool_ms
        A tool's time (exponential).
    answer_token_ms
        Time for each token of an answer.
    context_tokens
        The longest prompt before it is summarised; instructions, task and a result may pass it.
    """

    num_kinds: int = 6
    # Means of the eight public Claude Code conversations of kv-cache-tester, rounded: tools 11,500
    # and instructions 2,600 tokens, 2,800 new tokens a request, 700 tokens an answer, 10 requests.
    mean_tools_tokens: int = 14_000
    mean_task_tokens: int = 400
    mean_result_tokens: int = 2_000
    mean_answer_tokens: int = 700
    mean_summary_tokens: int = 1_000
    mean_steps: float = 10.0
    subagent_percent: float = 5.0  # those conversations have none; chosen
    mean_subagents: float = 2.0
    mean_tool_ms: int = 5_000
    answer_token_ms: int = 20
    context_tokens: int = 100_000

    def __post_init__(self) -> None:
        check_number("num_kinds of agents", self.num_kinds, least=1, most=1e5, whole=True)
        for name in (*_TOKENS, "context_tokens"):
            check_number(f"{name} of agents", getattr(self, name), least=1, most=1e7, whole=True)
        check_number("mean_steps of agents", self.mean_steps, least=1, most=1e6)
        check_number("subagent_percent of agents", self.subagent_percent, most=100)
        check_number("mean_subagents of agents", self.mean_subagents, least=1, most=1000)
        for name in ("mean_tool_ms", "answer_token_ms"):
            check_number(f"{name} of agents", getattr(self, name), most=1e9, whole=True)

    @property
    def starts(self) -> Starts:
        """Tasks begin 8 s apart."""
        return Starts(process=Poisson(gap_s=8.0))

    def opener(self, writer: Writer, rng: Rng) -> Callable[[], Session]:
        """See `Workload`."""
        names = [(role, kind) for role in ("agent", "sub") for kind in range(self.num_kinds)]
        lengths = {name: length(rng, self.mean_tools_tokens) for name in names}
        popularity = Popularity(self.num_kinds, 1, rng)

        def begin(role: str) -> Session:
            name = (role, popularity.draw())
            # written when the first step is asked for, so that keys are in the order of use
            tools = partial(writer.add_shared, writer.empty, name, lengths[name])
            if role == "sub":
                return self._steps(tools, max(1.0, self.mean_steps / 2), None, writer, rng)
            return self._steps(tools, self.mean_steps, partial(begin, "sub"), writer, rng)

        return partial(begin, "agent")

    def _steps(
        self,
        with_tools: Callable[[], Prompt],
        mean_steps: float,
        begin_helper: Callable[[], Session] | None,
        writer: Writer,
        rng: Rng,
    ) -> Iterator[Turn]:
        before = tools = with_tools()
        new = length(rng, self.mean_task_tokens)
        pause_ms: int | None = 0
        while pause_ms is not None:
            if before is not tools and before.num_tokens + new > self.context_tokens:
                before, new = tools, length(rng, self.mean_summary_tokens)
            before = prompt = writer.add_own(before, new)
            new = answer = length(rng, self.mean_answer_tokens)
            pause_ms = None
            helpers: tuple[Session, ...] = ()
            if rng.random() >= 1 / mean_steps:
                if begin_helper is not None and happens(rng, self.subagent_percent):
                    helpers = tuple(begin_helper() for _ in range(self._num_helpers(rng)))
                    pause_ms = 0
                    new += sum(length(rng, self.mean_summary_tokens) for _ in helpers)
                else:
                    pause_ms = exponential(rng, self.mean_tool_ms)
                    new += length(rng, self.mean_result_tokens)
            yield Turn(prompt, answer, answer * self.answer_token_ms, pause_ms, helpers)

    def _num_helpers(self, rng: Rng) -> int:
        num = 1
        while rng.random() >= 1 / self.mean_subagents:
            num += 1
        return num

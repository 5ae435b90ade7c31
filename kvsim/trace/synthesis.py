"""Make a trace of chats: shared system prompts, several turns a session, pauses for thought.

Only `random()` is drawn, whose sequence Python promises to keep, so a seed means the same trace in
every version.
"""

from __future__ import annotations

from bisect import bisect
from dataclasses import dataclass, field, fields
from heapq import heappop, heappush
from itertools import accumulate
from math import log
from random import Random
from typing import TYPE_CHECKING

from kvsim.errors import ConfigError
from kvsim.trace.base import Trace
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from kvsim.types import Rng

_MS_NS = 10**6


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatConfig:
    """What `synthesize_chat` makes. The defaults are those of the sample `chat`.

    Parameters
    ----------
    num_requests
        Length of the trace.
    block_size
        Tokens a block.
    num_system_prompts
        How many there are; the k-th most popular is drawn in proportion to 1/k.
    mean_system_tokens, mean_message_tokens, mean_answer_tokens
        Mean lengths; each is the sum of two exponentials, which makes very short ones rare.
    mean_document_tokens, document_percent
        So many of 100 messages also carry a document, of this mean length.
    mean_session_gap_ms
        Between the starts of two sessions (exponential).
    mean_turns
        Turns a session (geometric).
    mean_think_ms, min_think_ms
        Between the end of an answer and the next turn: the minimum and an exponential; the mean
        is of their sum.
    answer_token_ms
        How long the user waits for each token of an answer.
    """

    num_requests: int = 2_000
    block_size: int = 64  # FastDeploy's and many engines' order of magnitude
    num_system_prompts: int = 8
    mean_system_tokens: int = 900
    mean_message_tokens: int = 120
    mean_answer_tokens: int = 350
    mean_document_tokens: int = 4_000
    document_percent: int = 20
    mean_session_gap_ms: int = 800
    mean_turns: float = 3
    mean_think_ms: int = 30_000
    min_think_ms: int = 2_000
    answer_token_ms: int = 20  # 50 tokens a second, about a fast reader's pace

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            if each.name == "mean_turns":
                if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
                    raise ConfigError(f"mean_turns must be a number of at least 1, not {value!r}")
                continue
            least = 0 if each.name in {"document_percent", "min_think_ms"} else 1
            if type(value) is not int or value < least:
                raise ConfigError(
                    f"{each.name} must be an integer of at least {least}, not {value!r}"
                )
        if self.document_percent > 100:
            raise ConfigError(f"document_percent must be at most 100, not {self.document_percent}")
        if self.min_think_ms > self.mean_think_ms:
            raise ConfigError(
                f"min_think_ms ({self.min_think_ms}) must be at most mean_think_ms"
                f" ({self.mean_think_ms})"
            )


@dataclass(slots=True, kw_only=True)
class _Session:
    """A conversation so far: its tokens, the ids of its full blocks, its system prompt."""

    name: str
    system: int
    num_tokens: int
    path: list[int] = field(default_factory=list)


def synthesize_chat(config: ChatConfig | None = None, *, seed: int) -> Trace:
    """Return a trace of chats; the same for the same arguments, everywhere.

    A prompt is the system prompt, all messages and answers before, and the new message, so its
    path extends that of the turn before. Partial last blocks are private (`PartialRule.NEVER`).
    Block ids are dense, in the order of their first use.
    """
    config = config or ChatConfig()
    rng = Random(seed)
    systems = [_length(rng, config.mean_system_tokens) for _ in range(config.num_system_prompts)]
    popularity = list(accumulate(1 / rank for rank in range(1, len(systems) + 1)))
    shared: list[list[int]] = [[] for _ in systems]
    waiting: list[tuple[int, int, _Session]] = []  # when, order of creation, who: a heap
    requests: list[Request] = []
    next_start_ms = num_sessions = num_ids = 0
    while len(requests) < config.num_requests:
        if waiting and waiting[0][0] <= next_start_ms:
            at_ms, _, session = heappop(waiting)
        else:
            system = bisect(popularity, rng.random() * popularity[-1])
            session = _Session(name=f"s{num_sessions}", system=system, num_tokens=systems[system])
            at_ms = next_start_ms
            num_sessions += 1
            next_start_ms += _exponential(rng, config.mean_session_gap_ms)
        session.num_tokens += _message_tokens(rng, config)
        num_ids = _extend(session, shared, systems, config.block_size, num_ids)
        request = _request(session, len(requests), at_ms, _length(rng, config.mean_answer_tokens))
        requests.append(request)
        session.num_tokens += request.num_output_tokens
        if rng.random() >= 1 / config.mean_turns:
            answered_ms = at_ms + config.answer_token_ms * request.num_output_tokens
            pause_ms = _exponential(rng, config.mean_think_ms - config.min_think_ms)
            turn_ms = answered_ms + config.min_think_ms + pause_ms
            heappush(waiting, (turn_ms, len(requests), session))
    return Trace(
        requests=tuple(requests),
        block_size=config.block_size,
        partial=PartialRule.NEVER,
        name=f"chat-{seed}",
        format="synthetic",
    )


def _request(session: _Session, request_id: int, at_ms: int, num_output_tokens: int) -> Request:
    return Request(
        request_id=request_id,
        arrived_at=at_ms * _MS_NS,
        block_keys=tuple(session.path),
        num_input_tokens=session.num_tokens,
        num_output_tokens=num_output_tokens,
        session_id=session.name,
    )


def _extend(
    session: _Session, shared: list[list[int]], systems: list[int], block_size: int, num_ids: int
) -> int:
    """Give the session's full blocks their ids; return how many ids exist then.

    The blocks that lie within the system prompt belong to all its sessions.
    """
    common = shared[session.system]
    if not session.path:
        while len(common) < systems[session.system] // block_size:
            common.append(num_ids)
            num_ids += 1
        session.path += common
    num_new = session.num_tokens // block_size - len(session.path)
    session.path += range(num_ids, num_ids + num_new)
    return num_ids + num_new


def _message_tokens(rng: Rng, config: ChatConfig) -> int:
    num_tokens = _length(rng, config.mean_message_tokens)
    if rng.random() * 100 < config.document_percent:
        num_tokens += _length(rng, config.mean_document_tokens)
    return num_tokens


def _length(rng: Rng, mean_tokens: int) -> int:
    return max(1, (_exponential(rng, mean_tokens) + _exponential(rng, mean_tokens)) // 2)


def _exponential(rng: Rng, mean: int) -> int:
    return round(-mean * log(1 - rng.random()))

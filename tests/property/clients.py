"""What a story is, and its requests as seen from outside the scheduler."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kvsim.core.attempt import Attempt, BlockLayout

if TYPE_CHECKING:
    from kvsim.config import CacheConfig, SchedulerConfig
    from kvsim.types import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What is run: the configuration, the requests, and what may go wrong.

    `cancel_percent`: how often a turn begins with a client that gives up, whoever it is.
    `audit_percent`: how often it is tried out whether the head of the queue waits for nothing.
    """

    cache: CacheConfig
    scheduler: SchedulerConfig
    requests: tuple[Request, ...]
    policy: str = "lru"
    cancel_percent: int = 0
    audit_percent: int = 0

    @property
    def allowed_blocks(self) -> int:
        """The longest table that a request may have."""
        capacity = self.cache.tier_blocks[0]
        return min(capacity, self.scheduler.max_blocks_per_request or capacity)

    @property
    def most_turns(self) -> int:
        """More turns than any run of the story can need."""
        num_tokens = sum(each.num_input_tokens + each.num_output_tokens for each in self.requests)
        num_tries = self.scheduler.max_attempts + len(self.requests) + 2
        return 100 + 20 * num_tokens * num_tries


@dataclass(slots=True)
class Client:
    """A request, and what the events and the Forwards tell of it.

    `attempt` is the number of the present attempt, None if it holds nothing. `num_kv` counts the
    tokens whose KV the attempt has; `num_target` those it needs before it makes the next one.
    `first_hits` are the blocks that its first attempt hit, by tier.
    """

    request: Request
    layout: BlockLayout
    attempt: int | None = None
    num_attempts: int = 0
    num_made: int = 0
    num_kv: int = 0
    num_target: int = 0
    is_decoding: bool = False
    is_cancel_wanted: bool = False
    end: str | None = None
    first_hits: tuple[int, ...] | None = None

    @property
    def waits(self) -> bool:
        """Whether it holds nothing and has not ended; it may not have arrived."""
        return self.attempt is None and self.end is None

    def admit(self, num_hits: tuple[int, ...]) -> None:
        """Take note of the next attempt and its hits by tier."""
        self.attempt = self.num_attempts
        self.num_attempts += 1
        if self.first_hits is None:
            self.first_hits = num_hits
        self.num_target = self.request.num_input_tokens + self.num_made
        # A prompt that is there as a whole computes its last token again.
        self.num_kv = min(self.layout.num_tokens(sum(num_hits)), self.num_target - 1)

    def stub(self) -> Attempt:
        """Return an attempt that tells the model of the memory where the tokens lie."""
        return Attempt(self.request, number=0, layout=self.layout, num_made=0, num_wanted_blocks=0)

    def next_attempt(self, reserve_blocks: int) -> Attempt:
        """Return an attempt that wants what the scheduler must want for the next one."""
        num_blocks = self.layout.num_blocks(self.request.num_input_tokens + self.num_made)
        most = max(num_blocks, self.layout.num_most_blocks)
        return Attempt(
            self.request,
            number=self.num_attempts,
            layout=self.layout,
            num_made=self.num_made,
            num_wanted_blocks=min(num_blocks + reserve_blocks, most),
        )

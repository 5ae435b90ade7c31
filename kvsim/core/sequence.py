"""A request on its way through the scheduler, and the record it leaves."""

from __future__ import annotations

from enum import StrEnum
from typing import TYPE_CHECKING

from kvsim.core.attempt import Attempt, BlockLayout
from kvsim.errors import MisuseError

if TYPE_CHECKING:
    from kvsim.types import BlockKey, Request


class Status(StrEnum):
    """Where a request is. The last four are ends."""

    WAITING = "waiting"
    LOADING = "loading"
    """Holds its blocks; some are still being copied up, and it waits for that."""
    RECEIVING = "receiving"
    """Holds its blocks; its KV is on its way from another instance, or is yet to be computed."""
    PREFILLING = "prefilling"
    DECODING = "decoding"
    FINISHED = "finished"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    FAILED = "failed"


class Sequence:
    """One request: its progress now, and its times and hits for the record.

    Times are nanoseconds on the backend's clock, None where it never came to that. Hits are those
    of the first admission; what later attempts find again is counted as `num_rematched_blocks`.

    Attributes
    ----------
    num_made
        Output tokens so far.
    num_computed, num_target_tokens
        Tokens whose KV the present attempt has, and needs before it can make the next.
    num_most_blocks
        Blocks that the whole request needs.
    due_step
        While decoding: the instance's step count at which the last token is made.
    interrupted_at, interrupted_ns, interrupted_before_token_ns
        When it lost its blocks, until they are computed again; such times together, and what of
        them was before the first token.
    ticket
        Changes whenever the sequence starts or stops decoding, so that heap entries made before
        are known to be stale.
    """

    __slots__ = (
        "admitted_at",
        "attempt",
        "due_step",
        "ended_at",
        "first_token_at",
        "interrupted_at",
        "interrupted_before_token_ns",
        "interrupted_ns",
        "is_cancel_wanted",
        "layout",
        "no_reload",
        "num_attempts",
        "num_computed",
        "num_cpu_hit_blocks",
        "num_disk_hit_blocks",
        "num_failures",
        "num_gpu_hit_blocks",
        "num_joined_blocks",
        "num_made",
        "num_most_blocks",
        "num_preemptions",
        "num_rematched_blocks",
        "num_target_tokens",
        "request",
        "status",
        "ticket",
    )

    def __init__(self, request: Request, block_size: int) -> None:
        self.request = request
        self.layout = BlockLayout(request, block_size)
        self.num_most_blocks = self.layout.num_most_blocks
        self.status = Status.WAITING
        self.attempt: Attempt | None = None
        self.num_attempts = 0
        self.num_failures = 0
        self.num_preemptions = 0
        self.num_made = 0
        self.num_computed = 0
        self.num_target_tokens = 0
        self.due_step = 0
        self.ticket = 0
        self.is_cancel_wanted = False
        self.no_reload: frozenset[BlockKey] = frozenset()
        self.admitted_at: int | None = None
        self.first_token_at: int | None = None
        self.ended_at: int | None = None
        self.num_gpu_hit_blocks = self.num_cpu_hit_blocks = self.num_joined_blocks = 0
        self.num_disk_hit_blocks = 0
        self.num_rematched_blocks = 0
        self.interrupted_at: int | None = None
        self.interrupted_ns = self.interrupted_before_token_ns = 0

    @property
    def num_known_tokens(self) -> int:
        """Prompt and output tokens so far: what a new attempt must have the KV of."""
        return self.request.num_input_tokens + self.num_made

    @property
    def admitted(self) -> Attempt:
        """The attempt that holds blocks.

        Raises
        ------
        MisuseError
            If the sequence holds none: it waits, or has ended.
        """
        if self.attempt is None:
            raise MisuseError(f"request {self.request.request_id} is {self.status}, not running")
        return self.attempt

    def interrupt(self, now: int) -> None:
        """Take note that it has lost its blocks."""
        if self.interrupted_at is None:
            self.interrupted_at = now

    def make_first_token(self, now: int) -> None:
        """Take note of the token that the end of a prefill gives; what was lost is there again."""
        self.num_made += 1
        if self.interrupted_at is not None:
            self.interrupted_ns += now - self.interrupted_at
            self.interrupted_at = None
        if self.first_token_at is None:
            self.first_token_at = now
            self.interrupted_before_token_ns = self.interrupted_ns

    def new_attempt(self, reserve_blocks: int) -> Attempt:
        """Return the next attempt, holding nothing yet.

        It will want the blocks of all tokens known, and `reserve_blocks` for tokens to come, but
        never more than the whole request needs.
        """
        num_tokens = self.request.num_input_tokens + self.num_made
        now_blocks = self.layout.num_blocks(num_tokens)
        wanted = min(now_blocks + reserve_blocks, self.num_most_blocks)
        return Attempt(
            self.request,
            number=self.num_attempts,
            layout=self.layout,
            num_made=self.num_made,
            num_wanted_blocks=max(now_blocks, wanted),
            no_reload=self.no_reload,
        )

    def start(self, attempt: Attempt, now: int) -> None:
        """Take note of an admission: what is hit need not be computed, but for the last token."""
        self.attempt = attempt
        hits = attempt.num_hit_blocks
        # A fully matched prompt still computes its last token: that gives the first output.
        self.num_target_tokens = known = self.num_known_tokens
        self.num_computed = min(self.layout.num_tokens(hits), known - 1) if hits else 0
        if self.num_attempts == 0:
            self.admitted_at = now
            self.num_disk_hit_blocks = attempt.num_disk_blocks
            self.num_cpu_hit_blocks = attempt.num_reload_blocks - attempt.num_disk_blocks
            self.num_gpu_hit_blocks = hits - attempt.num_reload_blocks
            self.num_joined_blocks = attempt.num_joined_blocks
        else:
            self.num_rematched_blocks += hits
        self.num_attempts += 1

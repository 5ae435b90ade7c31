"""Configuration of the core: one frozen dataclass per concern, checked when it is made.

Every field has its unit in its name and the reason for its default beside it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from itertools import pairwise
from typing import Final

from kvsim.errors import ConfigError

TIER_NAMES: Final = ("gpu", "cpu", "disk")
"""By tier index. The last stands for whatever lies beyond host memory: local disks, a store."""


class SwapIn(StrEnum):
    """When a request whose blocks are still on their way up joins the batch."""

    OVERLAP = "overlap"
    """At once: its layers wait for the layers of the copy (layer gate)."""
    WAIT = "wait"
    """After the copy has settled; others go on meanwhile."""


class TierInclusion(StrEnum):
    """Whether a block that is copied up stays below."""

    EXCLUSIVE = "exclusive"
    """It does not: a block is in one tier, so that the tiers hold as much as they can together."""
    INCLUSIVE = "inclusive"
    """It does: it can leave the GPU again without being copied."""


class WritePolicy(StrEnum):
    """When a block is copied to the tier below."""

    BACK = "back"
    """When it is chosen as a victim, unless there is a copy below."""
    THROUGH = "through"
    """When it is written; a victim without a copy below is dropped."""
    SELECTIVE = "selective"
    """When it has been hit `write_through_hits` times; a victim without a copy below is dropped."""


class Preempt(StrEnum):
    """What becomes of the blocks of a request that must make room for others."""

    RECOMPUTE = "recompute"
    """They stay cached like those of any request that ends, until they are evicted."""
    SWAP = "swap"
    """Those that nobody else refers to are written back at once."""


def _at_least(name: str, value: int, least: int) -> None:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ConfigError(f"{name} must be an integer of at least {least}, not {value!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheConfig:
    """The cache manager of one instance.

    Parameters
    ----------
    block_size
        Tokens a block.
    tier_blocks
        Capacity of each tier in blocks, nearest first: `(gpu,)`, `(gpu, cpu)` or `(gpu, cpu,
        disk)`. A tier of 0 blocks at the end is the same as none.
    tier_inclusion, write_policy
        Whether a block that is copied up stays below, and when blocks are copied down. What is
        written through is in two tiers, so that needs inclusive tiers.
    write_through_hits
        With the selective write policy: how often a block must be hit before it is copied down.
        Default: 1, the second request that wants it.
    share_in_flight
        Whether a block that is being computed for one request is a hit for another, which then
        waits for it. If not, the other computes it as well.
    swap_batch_blocks
        How many blocks a write-back moves at least, in one Transfer. Default: 1/32 of the GPU
        tier, at most 128 (128 costs 0.1 % of the hits and a third of the time of 1).
    low_watermark_blocks
        Write back ahead of need while fewer blocks are free or leaving. Only with a second tier,
        and only what the write policy writes back. Default: as `swap_batch_blocks`. For a tier
        between two others see `low_watermark_of`.
    keep_outputs
        Whether full blocks of output tokens are cached as they fill, and stay when their request
        ends. If not, only a preempted request leaves them, to find them again.
    num_groups
        Cache groups (layers with block tables of their own). Only 1 is supported.
    """

    block_size: int = 512  # what the Mooncake traces hash
    tier_blocks: tuple[int, ...] = (10_000,)
    tier_inclusion: TierInclusion = TierInclusion.EXCLUSIVE  # holds most; FastDeploy's way
    write_policy: WritePolicy = WritePolicy.BACK  # moves fewest bytes
    write_through_hits: int | None = None
    share_in_flight: bool = True  # what is being computed is as good as there
    swap_batch_blocks: int | None = None
    low_watermark_blocks: int | None = None
    keep_outputs: bool = True  # engines do: the next turn of a chat begins with them
    num_groups: int = 1

    def __post_init__(self) -> None:
        _at_least("block_size", self.block_size, 1)
        self._check_tiers()
        self._check_write_policy()
        if self.swap_batch_blocks is not None:
            _at_least("swap_batch_blocks", self.swap_batch_blocks, 1)
        if self.low_watermark_blocks is not None:
            _at_least("low_watermark_blocks", self.low_watermark_blocks, 0)
        if self.num_groups != 1:
            raise ConfigError(
                f"num_groups must be 1, not {self.num_groups!r}: hybrid models with several cache"
                " groups (sliding windows beside full attention) are not supported"
            )

    def _check_tiers(self) -> None:
        sizes = self.tier_blocks
        if not 1 <= len(sizes) <= len(TIER_NAMES):
            raise ConfigError(f"tier_blocks must name 1 to {len(TIER_NAMES)} tiers, not {sizes!r}")
        for name, capacity in zip(TIER_NAMES, sizes, strict=False):
            _at_least(f"{name}_blocks", capacity, 0 if name != TIER_NAMES[0] else 1)
        for above, below in pairwise(range(len(sizes))):
            if sizes[below] and not sizes[above]:
                raise ConfigError(
                    f"{TIER_NAMES[below]}_blocks of {sizes[below]} need a tier above them to come"
                    f" from: {TIER_NAMES[above]}_blocks must be at least 1, not 0"
                )

    def _check_write_policy(self) -> None:
        is_through = self.write_policy is not WritePolicy.BACK
        if is_through and self.tier_inclusion is TierInclusion.EXCLUSIVE:
            raise ConfigError(
                f"write_policy {str(self.write_policy)!r} keeps a block in two tiers, and"
                " tier_inclusion 'exclusive' forbids that: make it 'inclusive'"
            )
        if self.write_through_hits is None:
            return
        _at_least("write_through_hits", self.write_through_hits, 1)
        if self.write_policy is not WritePolicy.SELECTIVE:
            raise ConfigError(
                "write_through_hits is for write_policy 'selective', not"
                f" {str(self.write_policy)!r}: leave it out"
            )

    @property
    def num_tiers(self) -> int:
        """Tiers that have any blocks."""
        return sum(map(bool, self.tier_blocks))

    @property
    def hits_to_write_through(self) -> int | None:
        """Hits after which a block is copied down; None: it is not before it is a victim."""
        match self.write_policy:
            case WritePolicy.BACK:
                return None
            case WritePolicy.THROUGH:
                return 0
            case WritePolicy.SELECTIVE:
                return self.write_through_hits or 1

    @property
    def swap_batch(self) -> int:
        """Blocks a write-back moves at least."""
        if self.swap_batch_blocks is not None:
            return self.swap_batch_blocks
        return max(1, min(128, self.tier_blocks[0] // 32))

    @property
    def low_watermark(self) -> int:
        """Free blocks below which a write-back starts ahead of need."""
        if self.low_watermark_blocks is not None:
            return self.low_watermark_blocks
        return self.swap_batch if self.swap_batch > 1 else 0

    def low_watermark_of(self, tier: int) -> int:
        """Return the low-water mark of a tier.

        A tier between two others must have room for what comes from above, which does not wait: a
        quarter of it, at most 16 batches. (With a batch only, a chat trace on 400 + 600 + 3,000
        blocks has 27 % of hits instead of 43 %.)
        """
        if not tier:
            return self.low_watermark
        room = min(self.tier_blocks[tier] // 4, 16 * self.swap_batch)
        return self.low_watermark + max(self.swap_batch, room)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """The continuous-batching scheduler of one instance.

    Parameters
    ----------
    token_budget
        Most tokens a step computes, prefill and decode together.
    max_running
        Most requests that hold blocks at a time.
    decode_reserve_blocks
        Blocks for output tokens that an admission takes along with the prompt's.
    grow_blocks
        Blocks a decoding request gets at a time when its table is full.
    max_blocks_per_request
        Longest block table; a request that needs more is refused at arrival. None: the GPU tier.
    swap_in
        When a request whose blocks are being copied up joins the batch.
    preempt
        What becomes of the blocks of a request that must make room. "swap" needs a second tier.
    max_attempts
        A request whose attempts failed this often ends as "failed".
    transfer_timeout_ns, forward_timeout_ns
        Deadline of an op after its issue; None: no deadline.
    """

    token_budget: int = 8192  # a step of some 40 ms for an 8B model on the default node
    max_running: int = 256  # vLLM's default of max_num_seqs
    decode_reserve_blocks: int = 1  # enough for the first tokens; FastDeploy takes 2 of 64 tokens
    grow_blocks: int = 1  # a block is 512 tokens by default, longer than most answers
    max_blocks_per_request: int | None = None
    swap_in: SwapIn = SwapIn.OVERLAP
    preempt: Preempt = Preempt.RECOMPUTE  # what vLLM does: blocks stay until others need them
    max_attempts: int = 16
    transfer_timeout_ns: int | None = None
    forward_timeout_ns: int | None = None

    def __post_init__(self) -> None:
        for name in ("token_budget", "max_running", "grow_blocks", "max_attempts"):
            _at_least(name, getattr(self, name), 1)
        _at_least("decode_reserve_blocks", self.decode_reserve_blocks, 0)
        for name in ("max_blocks_per_request", "transfer_timeout_ns", "forward_timeout_ns"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)
        if self.token_budget < self.max_running:
            raise ConfigError(
                f"token_budget ({self.token_budget}) must be at least max_running"
                f" ({self.max_running}): each decoding request takes one token a step"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkConfig:
    """One link between two tiers of an instance, per rank.

    An op costs `latency_ns + overhead_ns`, then its bytes share the bandwidth fairly with the
    other ops on the link. `full_duplex`: both directions have the whole bandwidth each.
    """

    bytes_per_second: int
    latency_ns: int
    overhead_ns: int
    full_duplex: bool = True

    def __post_init__(self) -> None:
        _at_least("bytes_per_second", self.bytes_per_second, 1)
        _at_least("latency_ns", self.latency_ns, 0)
        _at_least("overhead_ns", self.overhead_ns, 0)


HALF_AN_SSD: Final = LinkConfig(
    bytes_per_second=3_500_000_000, latency_ns=100_000, overhead_ns=20_000
)
"""A solid-state disk that two GPUs share: see `kvsim.cost.Hardware`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultConfig:
    """Seeded faults of the simulator. Rates are per op and rank, 0 to 1.

    `fail_rate`: the op ends FAILED. `delay_rate`: it ends `delay_ns` later. `hang_rate`: it never
    ends: TIMED_OUT at its deadline, Settled `settle_ns` after that (an op without a deadline
    cannot hang; it fails instead).
    """

    fail_rate: float = 0.0
    delay_rate: float = 0.0
    hang_rate: float = 0.0
    delay_ns: int = 1_000_000
    settle_ns: int = 10_000_000
    kinds: tuple[str, ...] = field(default=("transfer", "forward"))

    def __post_init__(self) -> None:
        for name in ("fail_rate", "delay_rate", "hang_rate"):
            rate = getattr(self, name)
            if not isinstance(rate, int | float) or not 0 <= rate <= 1:
                raise ConfigError(f"{name} must be between 0 and 1, not {rate!r}")
        if self.fail_rate + self.delay_rate + self.hang_rate > 1:
            raise ConfigError("fail_rate, delay_rate and hang_rate must add up to at most 1")
        _at_least("delay_ns", self.delay_ns, 0)
        _at_least("settle_ns", self.settle_ns, 0)
        unknown = set(self.kinds) - {"transfer", "forward"}
        if unknown:
            raise ConfigError(f"fault kinds are 'transfer' and 'forward', not {min(unknown)!r}")


class Role(StrEnum):
    """What an instance does for a request."""

    MIXED = "mixed"
    """All of it."""
    PREFILL = "prefill"
    """Computes the prompt and makes the first token."""
    DECODE = "decode"
    """Makes all tokens but the first, from KV that a prefill instance has sent."""


class SendMode(StrEnum):
    """When the KV of a prompt leaves the prefill instance."""

    LAYERWISE = "layerwise"
    """Each block with the chunk that fills it, each layer when it is computed."""
    AT_END = "at_end"
    """All of it when the whole prompt is computed: the baseline."""


class OnSendFailure(StrEnum):
    """What becomes of a request whose KV did not arrive."""

    RECOMPUTE = "recompute"
    """It goes through prefill again, as long as it has attempts left."""
    FAIL = "fail"
    """It ends as "failed"."""


class Routing(StrEnum):
    """How requests are dealt out to instances. Ties go to the lowest number."""

    ROUND_ROBIN = "round_robin"
    LEAST_LOADED = "least_loaded"
    """To the one with the fewest tokens to compute (prefill), or to hold (decode)."""
    CACHE_AWARE = "cache_aware"
    """As LEAST_LOADED, what is not cached there of this prompt included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitConfig:
    """Prefill and decode on instances of their own.

    Parameters
    ----------
    send
        When KV is sent.
    on_send_failure
        What becomes of a request when a send fails.
    max_attempts
        A request whose attempts failed this often ends as "failed".
    send_timeout_ns
        Deadline of a send after its issue, which is that of the Forward it follows; None: none.
    reserve_timeout_ns
        How long decode keeps blocks for KV that has not arrived; None: for ever.
    max_receiving
        Requests whose blocks a decode instance keeps before their KV is there; None: no limit
        but that of running requests.
    routing
        How requests are dealt out.
    """

    send: SendMode = SendMode.LAYERWISE
    on_send_failure: OnSendFailure = OnSendFailure.RECOMPUTE
    max_attempts: int = 16  # as SchedulerConfig
    send_timeout_ns: int | None = None
    reserve_timeout_ns: int | None = None
    max_receiving: int | None = None
    routing: Routing = Routing.LEAST_LOADED

    def __post_init__(self) -> None:
        _at_least("max_attempts", self.max_attempts, 1)
        for name in ("send_timeout_ns", "reserve_timeout_ns", "max_receiving"):
            if getattr(self, name) is not None:
                _at_least(name, getattr(self, name), 1)

"""What a step and a copy cost: the model's shape, the hardware's rates, and a roofline of both.

Only integers: every cost is a whole number of nanoseconds, rounded up once, at the end.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final, Protocol

from kvsim.config import HALF_AN_SSD, LinkConfig
from kvsim.errors import ConfigError

_NS_PER_S: Final = 10**9
_FS_PER_S: Final = 10**15
_FS_PER_NS: Final = 10**6
_QUERY_TILE_TOKENS: Final = 128


def duration_ns(num_bytes: int, bytes_per_second: int) -> int:
    """Return the time that `num_bytes` take at a rate, in whole nanoseconds, rounded up."""
    return -(-num_bytes * _NS_PER_S // bytes_per_second)


class CostModel(Protocol):
    """How long compute takes and how much a copy moves. Pure, and the same on every rank."""

    @property
    def num_layers(self) -> int:
        """Layers of the model, at least 1; a step spends the same time in each."""

    def forward_ns(
        self,
        num_prefill_tokens: int,
        prefill_attention_tokens: int,
        num_decodes: int,
        context_tokens: int,
        num_steps: int,
    ) -> int:
        """Return the time of the first `num_steps` steps of a batch, in nanoseconds.

        Never decreases as `num_steps` grows. Each step computes `num_prefill_tokens` prompt tokens
        and one token for each of `num_decodes` requests. `prefill_attention_tokens` is the sum,
        over the prompt tokens, of the tokens each attends to (itself among them).
        `context_tokens` is what the decoding requests attend to together in the first step; it
        grows by `num_decodes` with each further step.
        """

    def transfer_bytes(self, num_blocks: int) -> int:
        """Return the bytes that a copy of `num_blocks` blocks moves on each rank."""

    def recompute_ns(self, depth: int) -> int:
        """Return the time to compute the block at `depth` (0 is a root) again, in nanoseconds."""


class KvKind(StrEnum):
    """What a model keeps for each token and layer."""

    GQA = "gqa"
    """K and V for each of `num_kv_heads` heads (all heads: multi-head; one: multi-query)."""
    MLA = "mla"
    """One latent vector, shared by K, V and all heads, and one rotary key."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """The sizes of a model that decide what its KV cache and its steps cost.

    Parameters
    ----------
    num_parameters, num_active_parameters
        All weights, and those that one token uses (fewer in a mixture of experts).
    weight_bits
        Bits a weight is stored and read in; the arithmetic is taken at the bf16 rate all the same.
    latent_dim, rope_dim
        Only for `KvKind.MLA`: width of the shared latent vector and of the rotary key.

    Raises
    ------
    ConfigError
        If a size is not positive, or the latent sizes do not fit `kv_kind`.
    """

    name: str
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    num_parameters: int
    num_active_parameters: int
    weight_bits: int = 16  # bf16, what most open weights are published in
    kv_kind: KvKind = KvKind.GQA
    latent_dim: int = 0
    rope_dim: int = 0

    def __post_init__(self) -> None:
        sizes = ("num_layers", "num_heads", "num_kv_heads", "head_dim")
        for name in (*sizes, "num_parameters", "num_active_parameters", "weight_bits"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of model {self.name!r} must be positive")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads ({self.num_heads}) of model {self.name!r} must be a multiple of"
                f" num_kv_heads ({self.num_kv_heads})"
            )
        latent_sizes = (self.latent_dim, self.rope_dim)
        if min(latent_sizes) < 1 if self.kv_kind is KvKind.MLA else latent_sizes != (0, 0):
            raise ConfigError(
                f"latent_dim and rope_dim of model {self.name!r} must be positive for mla and 0"
                f" for gqa, not {self.latent_dim} and {self.rope_dim}"
            )

    def kv_bytes_per_token(self, kv_bits: int) -> int:
        """Return the KV cache of one token in all layers, in bytes (see `kv_bytes_per_rank`)."""
        return self.kv_bytes_per_rank(kv_bits, num_ranks=1)

    def kv_bytes_per_rank(self, kv_bits: int, *, num_ranks: int) -> int:
        """Return the KV cache of one token that each of `num_ranks` ranks keeps, in bytes.

        K and V are both counted; an MLA latent, which serves as both, once. GQA heads are divided
        among the ranks, and copied where there are more ranks than heads; an MLA latent is whole
        on every rank. Scales of quantised values are not counted.

        Raises
        ------
        ConfigError
            If `kv_bits` is not 4, 8 or 16.

        Source: Ainslie et al. 2023 (GQA), section 2; DeepSeek-V2 2024 (MLA), section 2.1.
        """
        if kv_bits not in (4, 8, 16):
            raise ConfigError(f"kv_bits must be 4, 8 or 16, not {kv_bits!r}")
        if self.kv_kind is KvKind.MLA:
            values = self.latent_dim + self.rope_dim
        else:
            values = 2 * -(-self.num_kv_heads // num_ranks) * self.head_dim
        return -(-self.num_layers * values * kv_bits // 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hardware:
    """The GPUs of one instance, which share the model by tensor parallelism. Rates are per GPU.

    Parameters
    ----------
    flops_per_second
        Dense bf16 peak.
    memory_bytes_per_second, memory_bytes
        Peak bandwidth and size of the GPU's memory.
    compute_efficiency_percent
        Share of the peak that large steps reach. Source: 76 % (prefill, Pope et al. 2022,
        abstract) and 38 to 43 % (training, Llama 3 2024, table 4) bound the default from both
        sides.
    memory_efficiency_percent
        Share of the bandwidth that decoding reaches. The default is an assumption, as is
        `step_overhead_ns`: measure yours.
    step_overhead_ns
        What each step costs besides: launches, sampling, and the all-reduces of the layers.
    host_link, disk_link
        From each GPU to the memory of the host, and to what lies beyond: a local disk, or a store
        of other machines. The default is an assumption: an SSD of 7 GB/s (PCIe gen4 x4) shared by
        two GPUs, and some 100 us to begin.
    """

    name: str
    num_gpus: int
    flops_per_second: int
    memory_bytes_per_second: int
    memory_bytes: int
    host_link: LinkConfig
    compute_efficiency_percent: int = 50
    memory_efficiency_percent: int = 80
    step_overhead_ns: int = 1_000_000
    disk_link: LinkConfig = HALF_AN_SSD

    def __post_init__(self) -> None:
        for name in ("num_gpus", "flops_per_second", "memory_bytes_per_second", "memory_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} of hardware {self.name!r} must be positive")
        for name in ("compute_efficiency_percent", "memory_efficiency_percent"):
            if not 1 <= getattr(self, name) <= 100:
                raise ConfigError(f"{name} must be 1 to 100, not {getattr(self, name)!r}")
        if self.step_overhead_ns < 0:
            raise ConfigError(f"step_overhead_ns must be at least 0, not {self.step_overhead_ns}")


class RooflineCost:
    """A `CostModel`: a step takes the longer of its arithmetic and its memory traffic.

    Per GPU, a step computes `2 * active parameters` FLOP a token plus the attention, and reads
    the weights once (of a mixture of experts at most what its tokens select), the contexts of the
    decoding requests, and the contexts of the prompt tokens once per 128 of them; it writes the KV
    of its tokens. Rates are kept in whole femtoseconds a token, rounded up: less than one part in
    ten thousand too slow for the GPUs and models of `kvsim.presets`.

    Parameters
    ----------
    block_size
        Tokens a block.
    kv_bits
        4, 8 or 16 bits for each value of the KV cache.

    Raises
    ------
    ConfigError
        If the heads cannot be divided among the GPUs, or a size is out of range.

    Source: Williams et al. 2009 (roofline); Kaplan et al. 2020, section 2.1 (FLOP a token);
    Dao 2023 (FlashAttention-2), section 3.3 (tiles of up to 128 queries).
    """

    def __init__(
        self, model: ModelShape, hardware: Hardware, *, block_size: int, kv_bits: int = 16
    ) -> None:
        num_gpus = hardware.num_gpus
        if model.num_heads % num_gpus:
            raise ConfigError(
                f"the {model.num_heads} heads of {model.name!r} cannot be divided among"
                f" {num_gpus} GPUs of {hardware.name!r}"
            )
        if block_size < 1:
            raise ConfigError(f"block_size must be at least 1, not {block_size!r}")
        self.model, self.hardware, self.block_size = model, hardware, block_size
        self.num_layers: int = model.num_layers
        kv_bytes = model.kv_bytes_per_rank(kv_bits, num_ranks=num_gpus)
        self.block_bytes = kv_bytes * block_size
        flops_per_100s = hardware.flops_per_second * hardware.compute_efficiency_percent * num_gpus
        bytes_per_100s = hardware.memory_bytes_per_second * hardware.memory_efficiency_percent

        def compute_fs(flops: int) -> int:
            return -(-flops * 100 * _FS_PER_S // flops_per_100s)

        def memory_fs(num_bytes: int, parts: int = 1) -> int:
            return -(-num_bytes * 100 * _FS_PER_S // (bytes_per_100s * parts))

        prefill_flops, decode_flops = _attention_flops(model)
        self._token_fs = compute_fs(2 * model.num_active_parameters)
        self._prefill_attention_fs = compute_fs(prefill_flops)
        self._decode_attention_fs = compute_fs(decode_flops)
        self._weights_fs = memory_fs(model.num_parameters * model.weight_bits, 8 * num_gpus)
        self._token_weights_fs = memory_fs(
            model.num_active_parameters * model.weight_bits, 8 * num_gpus
        )
        self._kv_fs = memory_fs(kv_bytes)
        self._prefill_read_fs = memory_fs(kv_bytes, _QUERY_TILE_TOKENS)
        self._overhead_fs = hardware.step_overhead_ns * _FS_PER_NS

    def forward_ns(
        self,
        num_prefill_tokens: int,
        prefill_attention_tokens: int,
        num_decodes: int,
        context_tokens: int,
        num_steps: int,
    ) -> int:
        """Return the time of the first `num_steps` steps of a batch (see `CostModel`)."""
        num_tokens = num_prefill_tokens + num_decodes
        compute = self._token_fs * num_tokens + self._decode_attention_fs * context_tokens
        memory = self._token_weights_fs * num_tokens
        if memory > self._weights_fs:
            memory = self._weights_fs
        memory += self._kv_fs * (context_tokens + num_tokens)
        if prefill_attention_tokens:
            compute += self._prefill_attention_fs * prefill_attention_tokens
            memory += self._prefill_read_fs * prefill_attention_tokens
        if num_steps == 1:
            total = compute if compute > memory else memory
            return -(-(total + self._overhead_fs) // _FS_PER_NS)
        total = sum_of_larger(
            compute,
            self._decode_attention_fs * num_decodes,
            memory,
            self._kv_fs * num_decodes,
            num_steps,
        )
        return -(-(total + self._overhead_fs * num_steps) // _FS_PER_NS)

    def transfer_bytes(self, num_blocks: int) -> int:
        """Return the bytes that a copy of `num_blocks` blocks moves on each rank."""
        return self.block_bytes * num_blocks

    def recompute_ns(self, depth: int) -> int:
        """Return the arithmetic that the block at `depth` adds to a large step, in nanoseconds.

        The overhead of the step and the weights it reads are shared by all of it and not counted.
        """
        size = self.block_size
        attention_tokens = prefill_attention_tokens(depth * size, size)
        compute = self._token_fs * size + self._prefill_attention_fs * attention_tokens
        return -(-compute // _FS_PER_NS)

    def max_gpu_blocks(self, *, usable_percent: int = 90) -> int:
        """Return how many blocks fit beside the weights in `usable_percent` of the GPU memory.

        Source: 90 % is vLLM's default of `gpu_memory_utilization`.

        Raises
        ------
        ConfigError
            If not even one block fits.
        """
        model, hardware = self.model, self.hardware
        weight_bytes = -(-model.num_parameters * model.weight_bits // (8 * hardware.num_gpus))
        free_bytes = hardware.memory_bytes * usable_percent // 100 - weight_bytes
        if free_bytes < self.block_bytes:
            raise ConfigError(
                f"model {model.name!r} leaves no room for a block on {hardware.name!r}: its weights"
                f" take {weight_bytes} of {hardware.memory_bytes} bytes a GPU"
            )
        return free_bytes // self.block_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearCost:
    """A `CostModel` that can be worked out by hand: constants that add up. For tests and teaching.

    A step takes `step_ns + token_ns` for each token `+ attention_ns` for each token attended to.
    """

    step_ns: int = 0
    token_ns: int = 0
    attention_ns: int = 0
    block_bytes: int = 1
    block_size: int = 1
    num_layers: int = 1

    def forward_ns(
        self,
        num_prefill_tokens: int,
        prefill_attention_tokens: int,
        num_decodes: int,
        context_tokens: int,
        num_steps: int,
    ) -> int:
        """Return the time of the first `num_steps` steps of a batch (see `CostModel`)."""
        step_ns = self.step_ns + self.token_ns * (num_prefill_tokens + num_decodes)
        step_ns += self.attention_ns * (prefill_attention_tokens + context_tokens)
        return arithmetic_sum(step_ns, self.attention_ns * num_decodes, num_steps)

    def transfer_bytes(self, num_blocks: int) -> int:
        """Return the bytes that a copy of `num_blocks` blocks moves on each rank."""
        return self.block_bytes * num_blocks

    def recompute_ns(self, depth: int) -> int:
        """Return what the block at `depth` adds to a step, in nanoseconds."""
        size = self.block_size
        attention_tokens = prefill_attention_tokens(depth * size, size)
        return self.token_ns * size + self.attention_ns * attention_tokens


def prefill_attention_tokens(first_token: int, num_tokens: int) -> int:
    """Return how many tokens those of a slice of a prompt attend to, added up, each to itself too.

    A token at position p attends to the p tokens before it and to itself.
    """
    return num_tokens * first_token + num_tokens * (num_tokens + 1) // 2


def arithmetic_sum(first: int, step: int, num_terms: int) -> int:
    """Return `first + (first + step) + ...`, `num_terms` terms."""
    return num_terms * first + step * (num_terms * (num_terms - 1) // 2)


def sum_of_larger(first: int, step: int, other_first: int, other_step: int, num_terms: int) -> int:
    """Return the sum over i < `num_terms` of the larger of two straight lines, without a loop.

    The lines are `first + i * step` and `other_first + i * other_step`; they cross at most once.
    """
    lead, gain = first - other_first, step - other_step
    if lead < 0 or (lead == 0 and gain < 0):
        first, step, other_first, other_step = other_first, other_step, first, step
        lead, gain = -lead, -gain
    if lead + gain * (num_terms - 1) >= 0:
        return arithmetic_sum(first, step, num_terms)
    num_leading = lead // -gain + 1
    rest = arithmetic_sum(
        other_first + other_step * num_leading, other_step, num_terms - num_leading
    )
    return arithmetic_sum(first, step, num_leading) + rest


def _attention_flops(model: ModelShape) -> tuple[int, int]:
    """Return the FLOP of one token attending to one token, in a prompt and in decoding.

    Two operations for each value of the scores (q times k) and of the output (p times v). MLA
    expands the latent in a prompt and works in it when decoding (absorbed projections).
    Source: DeepSeek-V2 2024, section 2.1 and appendix C.
    """
    heads = model.num_heads * model.num_layers
    if model.kv_kind is KvKind.GQA:
        flops = 4 * model.head_dim * heads
        return flops, flops
    prefill = 2 * (model.head_dim + model.rope_dim) + 2 * model.head_dim
    decode = 2 * (model.latent_dim + model.rope_dim) + 2 * model.latent_dim
    return prefill * heads, decode * heads

"""Models and machines by name. Every number is from the source named beside it."""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from kvsim.config import LinkConfig
from kvsim.cost import Hardware, KvKind, ModelShape
from kvsim.errors import UnknownNameError

if TYPE_CHECKING:
    from collections.abc import Mapping


def find_model(name: str) -> ModelShape:
    """Return the model with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    if name not in MODELS:
        raise UnknownNameError("model", name, MODELS)
    return MODELS[name]


def find_hardware(name: str) -> Hardware:
    """Return the machine with this name; `dataclasses.replace` changes its number of GPUs.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    if name not in HARDWARE:
        raise UnknownNameError("hardware", name, HARDWARE)
    return HARDWARE[name]


# Both: Llama 3 2024, table 3 (layers, dimensions, heads, 8 key/value heads); the parameter counts
# are those of the published weights. 131,072 and 327,680 bytes of KV a token in bf16.
_LLAMA_8B: Final = ModelShape(
    name="llama-3.1-8b",
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    num_parameters=8_030_261_248,
    num_active_parameters=8_030_261_248,
)
_LLAMA_70B: Final = ModelShape(
    name="llama-3.1-70b",
    num_layers=80,
    num_heads=64,
    num_kv_heads=8,
    head_dim=128,
    num_parameters=70_553_706_496,
    num_active_parameters=70_553_706_496,
)
# DeepSeek-V3 2024, section 4.2 (61 layers, 128 heads of 128, latent 512, rotary 64, 671B and 37B
# active) and section 3.3 (weights in FP8). 70,272 bytes of KV a token in bf16.
_DEEPSEEK_V3: Final = ModelShape(
    name="deepseek-v3",
    num_layers=61,
    num_heads=128,
    num_kv_heads=128,
    head_dim=128,
    num_parameters=671_000_000_000,
    num_active_parameters=37_000_000_000,
    weight_bits=8,
    kv_kind=KvKind.MLA,
    latent_dim=512,
    rope_dim=64,
)

# About 50 GB/s one way for blocks of 2 MB on PCIe gen5 x16 (reported for vLLM on H100); gen4 has
# half the signalling rate. The two latencies are assumptions: a few microseconds on the bus, and
# the host's time to gather and launch a batch of copies.
_PCIE_GEN5: Final = LinkConfig(
    bytes_per_second=50_000_000_000, latency_ns=2_000, overhead_ns=20_000
)
_PCIE_GEN4: Final = LinkConfig(
    bytes_per_second=25_000_000_000, latency_ns=2_000, overhead_ns=20_000
)

# NVIDIA H200 data sheet (SXM): 141 GB, 4.8 TB/s, 1,979 TFLOPS in bf16 with sparsity, half dense.
_H200_8X: Final = Hardware(
    name="h200-8x",
    num_gpus=8,
    flops_per_second=989_000_000_000_000,
    memory_bytes_per_second=4_800_000_000_000,
    memory_bytes=141_000_000_000,
    host_link=_PCIE_GEN5,
)
# NVIDIA A100 data sheet (SXM, 80 GB): 2,039 GB/s, 312 TFLOPS in bf16 dense.
_A100_8X: Final = Hardware(
    name="a100-8x",
    num_gpus=8,
    flops_per_second=312_000_000_000_000,
    memory_bytes_per_second=2_039_000_000_000,
    memory_bytes=80_000_000_000,
    host_link=_PCIE_GEN4,
)

MODELS: Final[Mapping[str, ModelShape]] = MappingProxyType(
    {shape.name: shape for shape in (_LLAMA_8B, _LLAMA_70B, _DEEPSEEK_V3)}
)
HARDWARE: Final[Mapping[str, Hardware]] = MappingProxyType(
    {machine.name: machine for machine in (_H200_8X, _A100_8X)}
)

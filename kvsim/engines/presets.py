"""Engines by name: which rules make their hit rates. Every rule is from the source beside it.

The versions are those that were read in late 2026.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, Generic, TypeVar

from kvsim.engines.replays import Evicts, Tail
from kvsim.errors import UnknownNameError
from kvsim.policies.lru import Stamp
from kvsim.types import PartialRule

if TYPE_CHECKING:
    from collections.abc import Mapping


_T_co = TypeVar("_T_co", covariant=True)


class Unit(StrEnum):
    """What a hit rate counts."""

    BLOCKS = "blocks"
    """Hit blocks of block references."""
    TOKENS = "tokens"
    """Tokens of hit blocks, of all input tokens."""


class LastToken(StrEnum):
    """What is counted of a prompt that is found as a whole."""

    COUNTED = "counted"
    """All of it."""
    COMPUTED = "computed"
    """At most the full blocks of all tokens but the last, which must be computed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule(Generic[_T_co]):
    """One rule of an engine.

    Parameters
    ----------
    value
        What it is.
    source
        Project, version, file and function that show it.
    is_inferred
        Whether it was concluded from that source rather than stated there.
    """

    value: _T_co
    source: str
    is_inferred: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """The rules that decide what an engine hits, and what it reports of it.

    Parameters
    ----------
    name, version
        Of the engine, and what of it was read.
    evicts
        What leaves the cache when it is full.
    tail
        Whether the rest of a node that is split counts as used.
    keys
        Whether a prompt's last block has a key if it is not full.
    unit, last_token
        How its hit rate is counted.
    stamp
        When the use of a block is. Makes no difference where no requests are in flight.
    not_simulated
        What else would change its figures, and is left out.
    """

    name: str
    version: str
    evicts: Rule[Evicts]
    tail: Rule[Tail]
    keys: Rule[PartialRule]
    unit: Rule[Unit]
    last_token: Rule[LastToken]
    stamp: Rule[Stamp]
    not_simulated: tuple[str, ...] = ()

    @property
    def rules(self) -> dict[str, Rule[StrEnum]]:
        """The rules by their names."""
        return {
            "evicts": self.evicts,
            "tail": self.tail,
            "keys": self.keys,
            "unit": self.unit,
            "last_token": self.last_token,
            "stamp": self.stamp,
        }

    @property
    def policy(self) -> str:
        """The policy of `kvsim.replay` that is LRU with the engine's stamp."""
        return "lru-admit" if self.stamp.value is Stamp.ADMIT else "lru"

    def settings(self) -> dict[str, str]:
        """Return those of its rules that are settings of `kvsim.replay` and of a run file.

        The trace must be read with them: `partial` is how.
        """
        return {"partial": self.keys.value.value, "policy": self.policy}

    def unset(self) -> tuple[str, ...]:
        """Return what no setting says: rules that a replay or a curve does not follow."""
        if self.evicts.value is Evicts.BLOCK:
            return self.not_simulated
        return (f"it evicts by {self.evicts.value}, a replay by block", *self.not_simulated)

    def to_dict(self) -> dict[str, object]:
        """Return the rules as JSON values."""
        return {
            "name": self.name,
            "version": self.version,
            "rules": {
                name: {
                    "value": rule.value.value,
                    "source": rule.source,
                    "inferred": rule.is_inferred,
                }
                for name, rule in self.rules.items()
            },
            "not_simulated": list(self.not_simulated),
        }


def find_engine(name: str) -> EnginePreset:
    """Return the engine with this name.

    Raises
    ------
    UnknownNameError
        If there is none; the message lists the names.
    """
    if name not in ENGINES:
        raise UnknownNameError("engine", name, ENGINES)
    return ENGINES[name]


_IN_BLOCKS_OF_THE_TRACE: Final = "its own block size: blocks are those of the trace"

_VLLM: Final = EnginePreset(
    name="vllm",
    version="0.33 (v1)",
    evicts=Rule(
        value=Evicts.BLOCK,
        source="vLLM 0.33, v1/core/block_pool.py, BlockPool.free_blocks, and KVCacheManager.free: a"
        " request's blocks join the free queue the last block first, and eviction takes its head",
    ),
    tail=Rule(
        value=Tail.OLD,
        source="vLLM 0.33, v1/core/block_pool.py, BlockPool: single blocks",
    ),
    keys=Rule(
        value=PartialRule.NEVER,
        source="vLLM 0.33, v1/core/kv_cache_utils.py, hash_block_tokens and its callers: full"
        " blocks only",
    ),
    unit=Rule(
        value=Unit.TOKENS,
        source="vLLM 0.33, v1/core/kv_cache_manager.py, KVCacheManager.get_computed_blocks: hits"
        " and queries of the prefix cache statistics are tokens",
    ),
    last_token=Rule(
        value=LastToken.COMPUTED,
        source="vLLM 0.33, v1/core/kv_cache_manager.py, KVCacheManager.get_computed_blocks: at most"
        " num_tokens - 1 tokens are looked up, in full blocks",
    ),
    stamp=Rule(
        value=Stamp.RELEASE,
        source="vLLM 0.33, v1/core/block_pool.py, BlockPool.free_blocks: a block joins the queue"
        " when its last request ends",
    ),
    not_simulated=(_IN_BLOCKS_OF_THE_TRACE, "preemption, and groups of layers of several kinds"),
)
_SGLANG: Final = EnginePreset(
    name="sglang",
    version="0.5.23",
    evicts=Rule(
        value=Evicts.NODE,
        source="SGLang 0.5.23, srt/mem_cache/radix_cache.py, RadixCache.evict: leaf nodes from a"
        " heap, each with all it holds",
    ),
    tail=Rule(
        value=Tail.RENEWED,
        source="SGLang 0.5.23, srt/mem_cache/radix_cache.py, RadixCache._match_prefix_helper and"
        " _insert_helper: a node is stamped before it is split, so that both parts are new",
        is_inferred=True,
    ),
    keys=Rule(
        value=PartialRule.NEVER,
        source="SGLang 0.5.23, srt/mem_cache/radix_cache.py, RadixCache.match_prefix: keys are cut"
        " to whole pages; here a page is a block of the trace, its default is one token",
        is_inferred=True,
    ),
    unit=Rule(
        value=Unit.TOKENS,
        source="SGLang 0.5.23, srt/managers: the cache hit rate is cached tokens of input tokens",
        is_inferred=True,
    ),
    last_token=Rule(
        value=LastToken.COMPUTED,
        source="SGLang 0.5.23, srt/managers/schedule_batch.py, Req._compute_max_prefix_len: at most"
        " input_len - 1 tokens are matched",
    ),
    stamp=Rule(
        value=Stamp.RELEASE,
        source="SGLang 0.5.23, srt/mem_cache/radix_cache.py, RadixCache.cache_finished_req: the"
        " whole path is inserted, and so stamped, once more when the request ends",
    ),
    not_simulated=(
        "pages smaller than a block of the trace: its default of one token hits partial blocks too",
        "requests that insert what they have computed so far, chunk by chunk",
    ),
)
_LMCACHE: Final = EnginePreset(
    name="lmcache",
    version="0.5.6, its cache simulator",
    evicts=Rule(
        value=Evicts.LIST,
        source="LMCache 0.5.6, tools/cache_simulator/simulator.py, simulate, and lru_cache.py,"
        " LRUCacheFast: chunks are touched or inserted in the order of the prompt, any may go",
    ),
    tail=Rule(
        value=Tail.OLD,
        source="LMCache 0.5.6, tools/cache_simulator/lru_cache.py, LRUCacheFast: single chunks",
    ),
    keys=Rule(
        value=PartialRule.NEVER,
        source="LMCache 0.5.6, tools/cache_simulator/simulator.py, simulate: the tokens after the"
        " last full chunk are always a miss; the engine's save_unfull_chunk is off by default",
    ),
    unit=Rule(
        value=Unit.TOKENS,
        source="LMCache 0.5.6, tools/cache_simulator/simulator.py, simulate: hit tokens of all",
    ),
    last_token=Rule(
        value=LastToken.COUNTED,
        source="LMCache 0.5.6, tools/cache_simulator/simulator.py, simulate: no rule for it; the"
        " engine's vLLM adapter takes one token off, not a chunk",
    ),
    stamp=Rule(
        value=Stamp.ADMIT,
        source="LMCache 0.5.6, tools/cache_simulator/simulator.py, simulate: at the lookup",
    ),
    not_simulated=(
        "its chunks of 256 tokens: chunks are the blocks of the trace",
        "the engine itself, which touches hits last chunk first (LocalCPUBackend.touch_cache) and"
        " has the engine above it in front",
    ),
)
_FASTDEPLOY: Final = EnginePreset(
    name="fastdeploy",
    version="2.2",
    evicts=Rule(
        value=Evicts.BLOCK,
        source="FastDeploy 2.2, cache_manager/prefix_cache_manager.py, free_block_ids_async, and"
        " cache_data.py, BlockNode.__lt__: a heap of leaves, oldest first, deeper first on a tie",
    ),
    tail=Rule(
        value=Tail.OLD,
        source="FastDeploy 2.2, cache_manager/cache_data.py, BlockNode: a node is one block",
    ),
    keys=Rule(
        value=PartialRule.NEVER,
        source="FastDeploy 2.2, cache_manager/prefix_cache_manager.py, match_block: full blocks"
        " only",
    ),
    unit=Rule(
        value=Unit.TOKENS,
        source="FastDeploy 2.2, cache_manager/cache_metrics.py: matched tokens of all tokens",
    ),
    last_token=Rule(
        value=LastToken.COUNTED,
        source="FastDeploy 2.2, cache_manager/prefix_cache_manager.py, request_match_blocks: the"
        " metric is taken at the match; the scheduler then computes a fully matched prompt's last"
        " block again",
    ),
    stamp=Rule(
        value=Stamp.ADMIT,
        source="FastDeploy 2.2, cache_manager/prefix_cache_manager.py, _update_matched_node_info"
        " and build_path: stamped at the match or when made, not at release",
    ),
    not_simulated=(
        "that it frees as many blocks as it needs where only some of them lack",
        "its metrics begin anew every 10,000 requests",
        "the tree of its later cache_manager/v1",
    ),
)

ENGINES: Final[Mapping[str, EnginePreset]] = MappingProxyType(
    {engine.name: engine for engine in (_VLLM, _SGLANG, _LMCACHE, _FASTDEPLOY)}
)

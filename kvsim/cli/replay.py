"""`kvsim replay`: the options are the fields of `ReplayConfig`, the rest is `kvsim.replay`."""

from __future__ import annotations

import json
import sys
from argparse import BooleanOptionalAction
from typing import TYPE_CHECKING, Final

from kvsim.cli.engine import add_engine_argument
from kvsim.cli.observing import add_observing_arguments

if TYPE_CHECKING:
    from argparse import ArgumentParser, Namespace
    from collections.abc import Callable, Mapping

HELP: Final = "replay a trace through a simulated prefix cache and report what it hits"


def time_scale(text: str) -> float | str:
    """Return a number, or the text if it is none: "auto" is one, and the settings know others."""
    try:
        return float(text)
    except ValueError:
        return text


def words(text: str) -> str:
    """Return a word of an intervention."""
    return text


SPELT: Final = {"interventions": "at"}
"""Settings whose option is called otherwise."""

OPTIONS: Final[dict[str, dict[str, tuple[Callable[[str], object], str]]]] = {
    "cache": {
        "gpu_blocks": (int, "GPU blocks; default: what the hardware leaves beside the weights"),
        "cpu_blocks": (int, "CPU blocks; default: 0, no CPU tier"),
        "gpu_gib": (float, "GPU tier in GiB instead: K and V, all ranks together"),
        "cpu_gib": (float, "CPU tier in GiB instead: K and V, all ranks together"),
        "disk_blocks": (int, "blocks of a third tier, on disk or in a store; default: 0, none"),
        "disk_gib": (float, "third tier in GiB instead: K and V, all ranks together"),
        "tier_inclusion": (str, "exclusive tiers, or inclusive ones; default: exclusive"),
        "write_policy": (str, "copy blocks down: back, through or selective; default: back"),
        "write_through_hits": (int, "hits after which selective copies a block down; default: 1"),
        "share_in_flight": (bool, "hit blocks that are still being computed; default: yes"),
        "policy": (str, "eviction policy, or module:Name of your own; default: lru"),
        "swap_batch_blocks": (int, "blocks a write-back moves at least; default: gpu/32, <= 128"),
        "low_watermark_blocks": (int, "free blocks at which it begins ahead; default: the batch"),
        "keep_outputs": (bool, "keep full blocks of output tokens; default: yes"),
        "retain": (str, "how long blocks are worth keeping, e.g. 'tokens=0:512,priority=80'"),
        "salt_by": (str, "keep apart the blocks of each tenant, or of each session"),
    },
    "trace": {
        "format": (str, "format of the file; default: found from its content"),
        "partial": (str, "a last block that is not full: count or never; default: by the format"),
        "limit": (int, "replay only the first so many requests"),
        "block_size": (int, "tokens a block; ids that stand for more are cut; default: the file's"),
        "warmup": (float, "share of the requests that the hits leave out, from the first; 0 to 1"),
    },
    "machine": {
        "model": (str, "model; default: llama-3.1-8b"),
        "hardware": (str, "machine, or hardware.toml of `kvsim calibrate`; default: h200-8x"),
        "kv_dtype": (str, "type of the KV: 4, 8 or 16 bits, or bf16, fp16, fp8, int8, fp4, int4"),
        "disk_bytes_per_second": (int, "to the third tier, a GPU; default: the hardware's"),
        "disk_latency_ns": (int, "of a copy to or from the third tier; default: the hardware's"),
    },
    "run": {
        "instant": (bool, "one request after another, all done at once: hits without time"),
        "seed": (int, "for policies that draw, and for faults; default: 0"),
        "interventions": (words, "what an operator does then, e.g. 10s resize gpu=5000"),
    },
    "scheduler": {
        "token_budget": (int, "most tokens a step computes; default: 8192"),
        "max_running": (int, "most requests that hold blocks at a time; default: 256"),
        "decode_reserve_blocks": (int, "output blocks taken at admission; default: 1"),
        "grow_blocks": (int, "blocks a decoding request gets at a time; default: 1"),
        "max_blocks_per_request": (int, "refuse a request that needs more; default: all of them"),
        "preempt": (str, "blocks of the preempted: recompute, or swap out at once"),
        "swap_in": (str, "copies up: overlap with compute, or wait; default: overlap"),
    },
    "backend": {
        "backend": (str, "sim, in virtual time, or paddle, with real tensors; default: sim"),
        "shape": (str, "shape of a block: tiny, tiny-mla, small, or model; default: tiny"),
        "layout": (str, "order of the memory: block-major or layer-major; default: block-major"),
        "extra_layers": (int, "layers of a draft model in each block; default: 0"),
        "expand_ratio": (float, "blocks of those layers for each of the others; default: 1"),
        "device": (str, "where the GPU tier is: cpu or gpu:N; default: cpu"),
        "ranks": (int, "workers that share the heads of the tensors; default: 1"),
        "workers": (str, "what these workers are: threads or processes; default: threads"),
        "worker_timeout_ns": (int, "how long a process may not answer, in ns; default: 30 s"),
        "time_scale": (
            time_scale,
            "how much faster than the trace, or auto; default: auto",
        ),
        "forward": (str, "what a step takes: its cost, none, or a real attention; default: cost"),
    },
    "faults": {
        "fail_rate": (float, "share of operations that fail, on each rank; default: 0"),
        "delay_rate": (float, "share of operations that are late, on each rank; default: 0"),
        "hang_rate": (float, "share of operations that hang, on each rank; default: 0"),
        "delay_ns": (int, "how late, in ns; default: 1000000"),
        "settle_ns": (int, "from the deadline of one that hangs to its rest, in ns"),
        "transfer_timeout_ns": (int, "deadline of a copy, in ns; default: none"),
        "forward_timeout_ns": (int, "deadline of a step, in ns; default: none"),
        "max_attempts": (int, "failures after which a request is given up; default: 16"),
    },
}
"""Group -> field of `ReplayConfig` -> how its text is read and what `--help` says."""


def add_arguments(parser: ArgumentParser) -> None:
    """Add the arguments of the command; an option that is not given is None."""
    parser.add_argument("trace", metavar="TRACE", help="a trace file, or sample:chat")
    parser.add_argument("--config", metavar="FILE", help="settings as TOML; options go before it")
    parser.add_argument(
        "--out", metavar="DIR", help="save run.json, the two tables and the plots there"
    )
    parser.add_argument(
        "--record", metavar="FILE", help="keep the turns of the engine there, to decide them again"
    )
    parser.add_argument(
        "--verify", action="store_true", help="decide the recorded run again, and compare"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON value, no table")
    add_engine_argument(parser)
    add_observing_arguments(parser)
    for group, options in OPTIONS.items():
        add_options(parser, group, options)


def add_options(
    parser: ArgumentParser, group: str, options: Mapping[str, tuple[Callable[[str], object], str]]
) -> None:
    """Add the options of a group; one that is not given is None."""
    titled = parser.add_argument_group(group)
    for name, (kind, text) in options.items():
        option = f"--{SPELT.get(name, name).replace('_', '-')}"
        if kind is words:
            titled.add_argument(
                option, dest=name, nargs="+", action="append", metavar="WORD", help=text
            )
        elif kind is bool:
            titled.add_argument(option, action=BooleanOptionalAction, help=text)
        else:
            titled.add_argument(option, type=kind, metavar=METAVARS[kind], help=text)


def run(arguments: Namespace) -> int:
    """Replay, save, print; return the exit code."""
    from kvsim.api import replay
    from kvsim.cli.engine import take_engine
    from kvsim.cli.observing import (
        attribution_of,
        needs_events,
        show_attribution,
        write_files,
    )
    from kvsim.cli.terminal import progress_bar, show
    from kvsim.saving import check_folder

    if arguments.out is not None:
        check_folder(arguments.out)  # better now than after an hour
    events = needs_events(arguments)
    engine = take_engine(arguments)
    settings = {name: getattr(arguments, name) for group in OPTIONS.values() for name in group}
    if arguments.interventions is not None:
        settings["interventions"] = tuple(map(" ".join, arguments.interventions))
    notes = []
    if engine is not None:
        settings["policy"] = settings["policy"] or engine.policy
        notes = [f"{engine.name}: {rule}" for rule in engine.unset()]
    with progress_bar("replay") as progress:
        result = replay(
            arguments.trace,
            config=arguments.config,
            events=events,
            record=arguments.record,
            verify=arguments.verify,
            progress=progress,
            **settings,
        )
    found = attribution_of(result) if arguments.attribution else None
    if arguments.out is not None:
        result.save(arguments.out)
    write_files(arguments, result, found)
    if arguments.json:
        more = {} if found is None else {"attribution": found.to_dict()}
        print(json.dumps(result.summary() | more, sort_keys=True, allow_nan=False))
    else:
        show(result, saved_to=arguments.out)
        for note in notes:
            print(f"note: {note}")
        if found is not None:
            show_attribution(found)
    for fault in result.faults:
        print(f"kvsim: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


METAVARS: Final = {int: "N", float: "X", str: "NAME", time_scale: "X"}

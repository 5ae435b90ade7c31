"""`kvsim replay`: the options are the fields of `ReplayConfig`, the rest is `kvsim.replay`."""

from __future__ import annotations

import sys
from argparse import BooleanOptionalAction
from typing import TYPE_CHECKING, Final

from kvsim.cli.engine import add_engine_argument

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


OPTIONS: Final[dict[str, dict[str, tuple[Callable[[str], object], str]]]] = {
    "cache": {
        "gpu_blocks": (int, "GPU blocks; default: what the hardware leaves beside the weights"),
        "cpu_blocks": (int, "CPU blocks; default: 0, no CPU tier"),
        "gpu_gib": (float, "GPU tier in GiB instead: K and V, all ranks together"),
        "cpu_gib": (float, "CPU tier in GiB instead: K and V, all ranks together"),
        "policy": (str, "eviction policy, or module:Name of your own; default: lru"),
        "swap_batch_blocks": (int, "blocks a write-back moves at least; default: gpu/32, <= 128"),
        "low_watermark_blocks": (int, "free blocks at which it begins ahead; default: the batch"),
        "keep_outputs": (bool, "keep full blocks of output tokens; default: yes"),
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
        "hardware": (str, "machine; default: h200-8x"),
        "kv_dtype": (str, "type of the KV: 4, 8 or 16 bits, or bf16, fp16, fp8, int8, fp4, int4"),
    },
    "run": {
        "instant": (bool, "one request after another, all done at once: hits without time"),
        "seed": (int, "for policies that draw, and for faults; default: 0"),
    },
    "scheduler": {
        "token_budget": (int, "most tokens a step computes; default: 8192"),
        "max_running": (int, "most requests that hold blocks at a time; default: 256"),
        "decode_reserve_blocks": (int, "output blocks taken at admission; default: 1"),
        "grow_blocks": (int, "blocks a decoding request gets at a time; default: 1"),
        "max_blocks_per_request": (int, "refuse a request that needs more; default: all of them"),
        "swap_in": (str, "copies up: overlap with compute, or wait; default: overlap"),
    },
    "backend": {
        "backend": (str, "sim, in virtual time, or paddle, with real tensors; default: sim"),
        "shape": (str, "shape of the tensors of a block; default: tiny"),
        "device": (str, "where the GPU tier is: cpu or gpu:N; default: cpu"),
        "ranks": (int, "workers that share the heads of the tensors; default: 1"),
        "time_scale": (
            time_scale,
            "how much faster than the trace, or auto; default: auto",
        ),
        "forward": (str, "what a step takes: its cost, or none; default: cost"),
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
    for group, options in OPTIONS.items():
        add_options(parser, group, options)


def add_options(
    parser: ArgumentParser, group: str, options: Mapping[str, tuple[Callable[[str], object], str]]
) -> None:
    """Add the options of a group; one that is not given is None."""
    titled = parser.add_argument_group(group)
    for name, (kind, text) in options.items():
        option = f"--{name.replace('_', '-')}"
        if kind is bool:
            titled.add_argument(option, action=BooleanOptionalAction, help=text)
        else:
            titled.add_argument(option, type=kind, metavar=_METAVARS[kind], help=text)


def run(arguments: Namespace) -> int:
    """Replay, save, print; return the exit code."""
    from kvsim.api import replay
    from kvsim.cli.engine import take_engine
    from kvsim.cli.terminal import progress_bar, show
    from kvsim.saving import check_folder

    if arguments.out is not None:
        check_folder(arguments.out)  # better now than after an hour
    engine = take_engine(arguments)
    settings = {name: getattr(arguments, name) for options in OPTIONS.values() for name in options}
    notes: list[str] = []
    if engine is not None:
        settings["policy"] = settings["policy"] or engine.policy
        notes = [f"{engine.name}: {rule}" for rule in engine.unset()]
    with progress_bar("replay") as progress:
        result = replay(
            arguments.trace,
            config=arguments.config,
            record=arguments.record,
            verify=arguments.verify,
            progress=progress,
            **settings,
        )
    if arguments.out is not None:
        result.save(arguments.out)
    if arguments.json:
        print(result.to_json())
    else:
        show(result, saved_to=arguments.out)
        for note in notes:
            print(f"note: {note}")
    for fault in result.faults:
        print(f"kvsim: {fault}", file=sys.stderr)
    return 1 if result.faults else 0


_METAVARS: Final = {int: "N", float: "X", str: "NAME", time_scale: "X"}

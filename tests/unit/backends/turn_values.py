"""Strategies for everything that a recording is made of, and its bytes."""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from hypothesis import strategies as st

from kvsim import events as ev
from kvsim.backends.turn_codec import Failure, Header, Turn
from kvsim.backends.turns import TurnWriter
from kvsim.core import ops
from kvsim.types import PartialRule, Request

if TYPE_CHECKING:
    from collections.abc import Sequence

PATH = Path("run.turns")
FIRST_LINE = b"kvsim-turns 1\n"
HEADER = Header("0.1.0", {}, "t", "f", None, 4, PartialRule.COUNT, 0)

ints = st.integers(-(2**63), 2**64 - 1)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=5)
keys = st.recursive(
    ints | texts | st.binary(max_size=17),
    lambda each: st.lists(each, max_size=3).map(tuple),
    max_leaves=5,
)


def tuples(each: st.SearchStrategy[object]) -> st.SearchStrategy[tuple[object, ...]]:
    return st.lists(each, max_size=3).map(tuple)


ids, many_keys = tuples(ints), tuples(keys)
deadlines = st.none() | ints
places = st.builds(ops.Place, instance=ints, tier=ints)
slices = st.builds(ops.Slice, ints, ints, ints, ints, ids, st.booleans())
members = st.builds(ops.Member, ints, ints, ints, ids)
gates, outcomes = st.sampled_from(ops.Gate), st.sampled_from(ops.Outcome)
KINDS: dict[type, st.SearchStrategy[Any]] = {
    ops.Forward: st.builds(
        ops.Forward, ints, ints, ints, tuples(slices), tuples(members), ids,
        tuples(st.tuples(ints, ids)), ints, ints, ids, gates, deadlines,
    ),
    ops.Transfer: st.builds(
        ops.Transfer, ints, places, places, ids, ids, tuples(st.tuples(ints, ints)), ids, gates,
        st.booleans(), deadlines,
    ),
    ops.Cancel: st.builds(ops.Cancel, ints),
    ops.Completion: st.builds(ops.Completion, ints, outcomes, ints, ints, ints, ids, texts),
    ops.Settled: st.builds(ops.Settled, ints, ints),
    ev.RequestRefused: st.builds(ev.RequestRefused, ints, ints, ints, ints),
    ev.RequestAdmitted: st.builds(
        ev.RequestAdmitted, ints, ints, ints, tuples(many_keys), ids, ids
    ),
    ev.AttemptEnded: st.builds(ev.AttemptEnded, ints, ints, ints, st.sampled_from(ev.EndReason)),
    ev.RequestEnded: st.builds(ev.RequestEnded, ints, ints, texts),
    ev.FillIssued: st.builds(ev.FillIssued, ints, ints, ints, many_keys, ids),
    ev.RequestGrown: st.builds(ev.RequestGrown, ints, ints, ids),
    ev.BlocksDuplicated: st.builds(ev.BlocksDuplicated, ints, ints, many_keys, ids),
    ev.TransferIssued: st.builds(
        ev.TransferIssued, ints, ints, ints, many_keys, ids, ids, st.booleans()
    ),
    ev.OpAnswered: st.builds(ev.OpAnswered, ints, ints, texts),
    ev.BlocksStored: st.builds(ev.BlocksStored, ints, many_keys, ids),
    ev.BlocksRemoved: st.builds(ev.BlocksRemoved, ints, many_keys, st.sampled_from(ev.RemoveCause)),
    ev.BlocksKept: st.builds(ev.BlocksKept, ints, many_keys),
    ev.BlocksFreed: st.builds(ev.BlocksFreed, ints, ids),
    ev.BlocksQuarantined: st.builds(ev.BlocksQuarantined, ints, ints, ids),
    ev.CacheCleared: st.builds(ev.CacheCleared, texts, ints),
}  # fmt: skip
COMMANDS, ANSWERS, EVENTS = map(get_args, (ops.Command, ops.Answer, ev.Event))
commands, answers, events = (
    st.one_of([KINDS[kind] for kind in kinds]) for kinds in (COMMANDS, ANSWERS, EVENTS)
)
turns = st.builds(Turn, ints, tuples(commands), tuples(answers), tuples(events))
requests = st.builds(
    Request,
    request_id=ints,
    arrived_at=ints,
    block_keys=many_keys,
    num_input_tokens=ints,
    num_output_tokens=ints,
    session_id=st.none() | texts,
    priority=ints,
    cancelled_at=deadlines,
    next_use_at=st.none() | ids,
)
scalars = st.none() | st.booleans() | ints | st.floats(allow_nan=False) | texts
settings = st.dictionaries(texts, scalars | st.dictionaries(texts, scalars, max_size=2), max_size=3)
headers = st.builds(
    Header, texts, settings, texts, texts, st.none() | texts, ints, st.sampled_from(PartialRule)
)  # fmt: skip
failures = st.builds(Failure, texts, texts, st.booleans())


def written(
    header: Header = HEADER,
    told: Sequence[Request] = (),
    run: Sequence[Turn] = (),
    failure: Failure | None = None,
) -> bytes:
    stream = BytesIO()
    writer = TurnWriter(stream, PATH, header._replace(num_requests=len(told)), told)
    for turn in run:
        writer.turn(*turn)
    writer.end(failure)
    assert writer.num_bytes == len(stream.getvalue())
    return stream.getvalue()

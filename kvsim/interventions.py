"""Interventions as text: `10s resize gpu=5000`, in Python, in TOML and on the command line.

    TIME resize gpu=BLOCKS          or cpu=BLOCKS, disk=BLOCKS
    TIME flush                      waits until nothing is running; `busy=refuse`: does not
    TIME weights                    other weights: nothing that is cached matches any more
    TIME pin request=N              the prompt of request N of the trace, and its first blocks
    TIME unpin request=N blocks=K   only: `blocks=K`
    TIME evict request=N

TIME is on the clock of the trace, with its unit: ns, us, ms or s.
"""

from __future__ import annotations

from decimal import Decimal
from typing import TYPE_CHECKING, Final

from kvsim.core.interventions import Action, Intervention
from kvsim.errors import ConfigError, UnknownNameError
from kvsim.trace.durations import duration_ns

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kvsim.trace import Trace

_LARGEST: Final = 1 << 53
_TIERS: Final = ("gpu", "cpu", "disk")
_PREFIX: Final = ("request", "blocks")
_WORDS: Final[Mapping[Action, tuple[str, ...]]] = {
    Action.RESIZE: _TIERS,
    Action.FLUSH: ("busy",),
    Action.WEIGHTS: (),
    Action.PIN: _PREFIX,
    Action.UNPIN: _PREFIX,
    Action.EVICT: _PREFIX,
}
"""Action -> what may be said with it."""


def check_interventions(texts: Sequence[str], *, is_instant: bool) -> None:
    """Raise `UserError` if one of the texts is no intervention, or there is no clock for them."""
    if isinstance(texts, str) or not isinstance(texts, tuple):
        raise ConfigError(f"interventions must be a list of texts, not {texts!r}")
    if texts and is_instant:
        raise ConfigError(
            "interventions come at a time, and an instant replay has none: leave out instant"
        )
    for text in texts:
        _parsed(text)


def resolve_interventions(
    texts: Iterable[str], trace: Trace, *, most_blocks: int = _LARGEST, speed: float = 1.0
) -> list[Intervention]:
    """Return the interventions, with the keys of their prefixes.

    Parameters
    ----------
    texts
        As above.
    trace
        Whose requests they name.
    most_blocks
        What the whole trace can take: a larger size is the same as this one.
    speed
        By how much the times of `trace` are faster than those of the texts.

    Raises
    ------
    ConfigError
        If one names a request that `trace` does not have, or one without blocks.
    """
    return [_resolved(text, trace, most_blocks, speed) for text in texts]


def peak_blocks(texts: Iterable[str], tier_blocks: Sequence[int]) -> tuple[int, ...]:
    """Return the largest size that each tier ever has."""
    peaks = list(tier_blocks)
    for _, action, words in map(_parsed, texts):
        if action is Action.RESIZE:
            tier, num_blocks = _resize_of(words)
            if tier < len(peaks):
                peaks[tier] = max(peaks[tier], num_blocks)
    return tuple(peaks)


def _parsed(text: object) -> tuple[int, Action, dict[str, str]]:
    if not isinstance(text, str):
        raise ConfigError(f"interventions must be texts such as '10s flush', not {text!r}")
    time, action_name, *rest = text.split() if len(text.split()) > 1 else [text.strip(), ""]
    at_ns = duration_ns(time)
    if at_ns is None:
        raise ConfigError(
            f"interventions: {text!r} must begin with a time and its unit (ns, us, ms, s), such as"
            f" 10s or 2.5ms, not {time!r}"
        )
    if action_name not in set(Action):
        raise UnknownNameError("intervention", action_name, [str(each) for each in Action])
    action = Action(action_name)
    words: dict[str, str] = {}
    for word in rest:
        name, equals, value = word.partition("=")
        if name not in _WORDS[action] or not equals or name in words:
            known = ", ".join(f"{each}=..." for each in _WORDS[action]) or "nothing"
            raise ConfigError(
                f"interventions: {action} takes {known}, each once, and not {word!r} in {text!r}"
            )
        words[name] = value
    _check_words(text, action, words)
    return at_ns, action, words


def _check_words(text: str, action: Action, words: Mapping[str, str]) -> None:
    if action is Action.RESIZE and len(words) != 1:
        raise ConfigError(
            f"interventions: {text!r} must say one new size: gpu=, cpu= or disk=BLOCKS"
        )
    if _WORDS[action] is _PREFIX and "request" not in words:
        raise ConfigError(
            f"interventions: {text!r} must say whose prompt: request=N, and blocks=K for its first"
            " K blocks only"
        )
    for name, value in words.items():
        if name == "busy":
            if value not in {"wait", "refuse"}:
                raise ConfigError(
                    f"interventions: busy must be wait or refuse in {text!r}, not {value!r}"
                )
            continue
        least = 0 if name == "request" else 1
        if not value.isascii() or not value.isdigit() or not least <= int(value) <= _LARGEST:
            raise ConfigError(
                f"interventions: {name} must be an integer of at least {least} in {text!r},"
                f" not {value!r}"
            )


def _resize_of(words: Mapping[str, str]) -> tuple[int, int]:
    [(tier, num_blocks)] = words.items()
    return _TIERS.index(tier), int(num_blocks)


def _resolved(text: str, trace: Trace, most_blocks: int, speed: float) -> Intervention:
    at_ns, action, words = _parsed(text)
    at = at_ns if speed == 1 else round(Decimal(at_ns) / Decimal(speed))
    if action is Action.RESIZE:
        tier, num_blocks = _resize_of(words)
        num_blocks = min(num_blocks, most_blocks)
        return Intervention(at=at, action=action, tier=tier, num_blocks=num_blocks)
    if "request" not in words:
        return Intervention(at=at, action=action, waits=words.get("busy") != "refuse")
    number = int(words["request"])
    if number >= trace.num_requests:
        raise ConfigError(
            f"interventions: {text!r} names request {number}, and {trace.name} has requests 0 to"
            f" {trace.num_requests - 1}"
        )
    keys = tuple(trace.requests[number].block_keys)
    num_blocks = int(words.get("blocks", len(keys)))
    if not 1 <= num_blocks <= len(keys):
        raise ConfigError(
            f"interventions: {text!r} asks for {num_blocks} blocks, and the prompt of request"
            f" {number} has {len(keys)}"
        )
    return Intervention(at=at, action=action, keys=keys[:num_blocks])

"""Retention for a whole trace, as rules on one line: who, which tokens, how much, how long.

    tokens=0:512,priority=80                  the first 512 tokens of every prompt
    session=a,priority=90,for=60s             all of session a, for a minute
    tenant=free,priority=10; outputs,priority=0

Rules are separated by `;`. Every rule that fits a request holds for it; where several give a token
a priority, the highest counts.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from kvsim.errors import ConfigError, UserError
from kvsim.trace.durations import duration_ns
from kvsim.types import RetentionRange

if TYPE_CHECKING:
    from kvsim.trace.base import Trace
    from kvsim.types import Request

_KNOWN: Final = ("tokens", "outputs", "session", "tenant", "priority", "for")
_FORM: Final = "tokens=FIRST:END or outputs, session=, tenant=, priority= and for="


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainRule:
    """One rule: what it says, of which part, for whom; None: for everybody."""

    kept: RetentionRange
    is_output: bool = False
    session: str | None = None
    tenant: str | None = None

    def fits(self, request: Request) -> bool:
        """Whether it holds for the request."""
        return self.session in {None, request.session_id} and self.tenant in {None, request.tenant}


def parse_retain(text: str) -> tuple[RetainRule, ...]:
    """Return the rules in a text.

    Raises
    ------
    ConfigError
        If one is not as described above.
    """
    return tuple(_rule(each) for each in text.split(";") if each.strip())


def retain_blocks(trace: Trace, rules: str) -> Trace:
    """Return `trace` with the retention that the rules give, beside what its requests say.

    Raises
    ------
    ConfigError
        If one is not as described above.
    UserError
        If one fits no request.
    """
    parsed = parse_retain(rules)
    for rule, text in zip(parsed, filter(str.strip, rules.split(";")), strict=True):
        if not any(map(rule.fits, trace.requests)):
            raise UserError(f"retain: {text.strip()!r} fits no request of {trace.name}")
    return replace(trace, requests=tuple(_retained(each, parsed) for each in trace.requests))


def _retained(request: Request, rules: tuple[RetainRule, ...]) -> Request:
    found = [rule for rule in rules if rule.fits(request)]
    if not found:
        return request
    outputs = [rule.kept for rule in found if rule.is_output]
    if request.output_retention is not None:
        outputs.append(request.output_retention)
    prompt = tuple(rule.kept for rule in found if not rule.is_output)
    return replace(
        request,
        retention=(*request.retention, *prompt),
        output_retention=max(outputs, key=lambda each: each.priority, default=None),
    )


def _rule(text: str) -> RetainRule:
    words: dict[str, str] = {}
    for word in text.strip().split(","):
        name, _, value = word.strip().partition("=")
        if name not in _KNOWN or name in words or bool(value) == (name == "outputs"):
            raise ConfigError(
                f"retain: a rule takes {_FORM}, each once, and not {word.strip()!r} in"
                f" {text.strip()!r}"
            )
        words[name] = value
    if "outputs" in words and "tokens" in words:
        raise ConfigError(f"retain: tokens are of the prompt, and outputs are not, in {text!r}")
    if "priority" not in words:
        raise ConfigError(f"retain: {text.strip()!r} must say a priority, such as priority=80")
    first, end = _tokens(words.get("tokens", "0:"), text)
    return RetainRule(
        kept=RetentionRange(
            first_token=first,
            end_token=end,
            priority=_number("priority", words["priority"], text),
            duration_ns=_duration_ns(words["for"], text) if "for" in words else None,
        ),
        is_output="outputs" in words,
        session=words.get("session"),
        tenant=words.get("tenant"),
    )


def _tokens(value: str, text: str) -> tuple[int, int | None]:
    first, colon, end = value.partition(":")
    if not colon:
        raise ConfigError(f"retain: tokens must be FIRST:END in {text.strip()!r}, not {value!r}")
    return _number("tokens", first or "0", text), _number("tokens", end, text) if end else None


def _number(name: str, value: str, text: str) -> int:
    if not value.isascii() or not value.isdigit():
        raise ConfigError(f"retain: {name} must be a whole number in {text!r}, not {value!r}")
    return int(value)


def _duration_ns(value: str, text: str) -> int:
    found = duration_ns(value)
    if found is None:
        raise ConfigError(
            f"retain: for must be a time and its unit (ns, us, ms, s) in {text!r}, not {value!r}"
        )
    return found

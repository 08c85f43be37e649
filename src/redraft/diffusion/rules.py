"""Acceptance rules spelt as words, for flags and JSON: "factor", "confidence:0.9", "gate:2:margin".

    entropy[:NATS]  confidence[:P]  factor[:F]  frechet[:MARGIN]  margin[:P]    a rule, with its own default if bare
    gate[:STEPS]:RULE     only what has read the same for STEPS steps (1 if bare)

Several rules keep what any of them keeps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from redraft.diffusion.accept import Accept, AnyOf, Confidence, EntropyBound, Factor, Frechet, Gate, Margin
from redraft.errors import RequestError, did_you_mean

RULES: Mapping[str, Callable[..., Accept]] = {
    "entropy": EntropyBound,
    "confidence": Confidence,
    "factor": Factor,
    "frechet": Frechet,
    "margin": Margin,
}
GATE, MOST_GATES, MOST_GATE_STEPS = "gate", 8, 10_000


def read_rules(words: Sequence[str]) -> Accept:
    """The rule that some words name. Raises RequestError for a word that names none."""
    if not words:
        raise RequestError("no acceptance rule was named; known: " + ", ".join((*RULES, GATE)))
    rules = tuple(read_rule(word) for word in words)
    return rules[0] if len(rules) == 1 else AnyOf(rules)


def read_rule(word: str) -> Accept:
    """One rule. Raises RequestError."""
    if (gates := word.count(GATE)) > MOST_GATES:
        raise RequestError(f"acceptance rule {word[:40]!r}… has {gates} gates in each other; at most {MOST_GATES}")
    name, *rest = word.split(":")
    if name == GATE:
        return _gate(word, rest)
    if name not in RULES:
        known = (*RULES, GATE)
        near = did_you_mean(name, known)
        raise RequestError(f"acceptance rule {word!r} names {name!r}; known: {', '.join(known)}{near}")
    if len(rest) > 1:
        raise RequestError(f"acceptance rule {word!r} has {len(rest)} values; {name} takes one at most, as {name}:0.5")
    return RULES[name](*(_number(word, value) for value in rest))


def _gate(word: str, rest: list[str]) -> Accept:
    """A gate before the rule that follows it."""
    value = rest.pop(0) if rest and rest[0] not in (*RULES, GATE) else None
    if not rest:
        raise RequestError(f"acceptance rule {word!r} is a gate before no rule; name one, as gate:confidence:0.9")
    rule = read_rule(":".join(rest))
    steps = 1.0 if value is None else _number(word, value)
    if steps != int(steps) or steps > MOST_GATE_STEPS:
        said = f"it must be a whole number, at most {MOST_GATE_STEPS}"
        raise RequestError(f"acceptance rule {word!r} has a gate of {value} steps; {said}")
    return Gate(int(steps), rule)


def _number(word: str, value: str) -> float:
    try:
        found = float(value)
    except ValueError:
        found = float("nan")
    if not abs(found) < float("inf"):
        raise RequestError(f"acceptance rule {word!r} has the value {value!r}; it must be a number")
    return found

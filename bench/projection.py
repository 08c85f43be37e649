"""What conditioning a canvas costs: added to a step of a model, and by itself at a vocabulary of 262,144."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from itertools import pairwise
from statistics import median

import torch

from redraft.constraints.condition.forward_backward import best_paths, scaled_messages
from redraft.constraints.language import Language, ready
from redraft.constraints.sources import schema_source
from redraft.engine.request import Options, Request
from redraft.measure.sample_schema import TEN_FIELDS, made_up_vocabulary
from redraft.operations.engine import Engine
from redraft.tasks import task

TRIES = 5
LARGE, WIDE = 262_144, 256


def large() -> dict[str, float]:
    """Seconds at a vocabulary of 262,144 made-up tokens and a canvas of 256, on this processor; the best of TRIES
    runs of what is repeated."""
    vocabulary = made_up_vocabulary(LARGE)
    began = time.perf_counter()
    assert len(vocabulary.trie.parent) > LARGE
    tree = time.perf_counter() - began
    began = time.perf_counter()
    language = ready(schema_source(TEN_FIELDS), vocabulary)
    compiled = time.perf_counter() - began
    logits = torch.randn(WIDE, LARGE, generator=torch.Generator().manual_seed(0))
    goal = language.start(WIDE)
    goal(torch.log_softmax(logits, -1)).shifted()  # what is worked out once for a language
    spent = []
    for _ in range(TRIES):
        marks = [time.perf_counter()]
        log_p = torch.log_softmax(logits, -1)
        (log_p.exp() * log_p).sum(-1)
        marks.append(time.perf_counter())
        found = goal(log_p)
        _ = found.shifted(), found.draft
        marks.append(time.perf_counter())
        for pass_on in (scaled_messages, best_paths):
            pass_on(goal.layout, found.weights, goal.state, goal.gates(WIDE))
        marks.append(time.perf_counter())
        spent.append([done - begun for begun, done in pairwise(marks)])
    plain, projected, passed = (min(one) for one in zip(*spent, strict=True))
    return {
        "trie_sec": tree,
        "compile_sec": compiled,
        "states": language.automaton.states,
        "classes": language.automaton.classes,
        "edges": len(language.automaton.src),
        "softmax_and_entropy_sec": plain,
        "projection_sec": projected,
        "messages_sec": passed,
    }


def share_of_step(engine: Engine, language: Language) -> dict[str, float]:
    """Milliseconds of a step of the model on its own whole canvas, with and without the language: medians of pairs."""
    prompt = next(iter(task("records").examples("held_out", 1))).prompt
    whole = Options(seed=1, preset="reference", end_aware=False, canvas=engine.config.model.canvas_length)
    plain = engine.resolve(Request(prompt, chat=True, options=whole))
    plain = replace(plain, policy=replace(plain.policy, max_steps=8, halt=_Never()))
    held = replace(plain, language=language)
    times: dict[str, list[float]] = {"plain": [], "held": []}
    for _ in range(30):
        for name, request in (("plain", plain), ("held", held)):
            began = time.perf_counter()
            done = engine.run(request)
            times[name].append((time.perf_counter() - began) * 1e3 / sum(done.steps))
    added = median([held - plain for held, plain in zip(times["held"], times["plain"], strict=True)])
    shares = [held / plain - 1 for held, plain in zip(times["held"], times["plain"], strict=True)]
    return {"plain_ms": median(times["plain"]), "held_ms": median(times["held"]), "added_ms": added,
            "share": median(shares), "edges": len(language.automaton.src)}  # fmt: skip


@dataclass(frozen=True)
class _Never:
    """A halting rule that never halts, so that both runs take as many steps."""

    memory: int = 0

    def __call__(self, stats: object, drafts: object) -> bool:
        return False

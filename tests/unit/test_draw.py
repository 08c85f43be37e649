"""`draw`: a held canvas becomes one of its valid texts, as often as the last step says. Expected: every way to spell
every text, multiplied out by hand."""

from __future__ import annotations

import itertools
import json
import math
import re

import pytest
import torch
from tests.helpers import ANSWER, PROMPT, SCHEMA, Shell

from redraft.cache import Prefix
from redraft.constraints.language import Language
from redraft.constraints.sources import choices_source, schema_source
from redraft.diffusion.denoise import temperature
from redraft.diffusion.seed import SeedCanvas
from redraft.engine.request import Options, Request, ResolvedRequest
from redraft.errors import RequestError
from redraft.operations.engine import Engine
from redraft.operations.gap_constraint import GapConstraint

pytestmark = pytest.mark.usefixtures("own_cache")

TEXTS = ["me", "lu", "4", "417"]
WIDTH = 4


def asked(engine: Engine, language: Language) -> ResolvedRequest:
    """One step of a canvas that begins with the same tokens under every seed, so that all read the same logits."""
    given = SeedCanvas(given=tuple(enumerate([300, 301, 302, 303])))
    options = Options(seed=0, steps=1, canvas=WIDTH, max_tokens=WIDTH, temperature=3.0, seed_canvas=given, draw=True)
    return engine.resolve(Request(PROMPT, chat=True, options=options, constraint=language))


def shares_by_hand(engine: Engine, request: ResolvedRequest) -> dict[str, float]:
    """Of each text, over all its spellings, the end token behind it and all that may stand behind that."""
    model = engine.model
    prefix = Prefix(model.config.layers, room=len(request.prompt), dtype=model.dtype, device=model.device)
    with torch.inference_mode():
        model.encode(torch.tensor(request.prompt), prefix)
        logits = model.denoise(torch.tensor([300, 301, 302, 303]), None, prefix)
    p = torch.softmax(logits.double() / temperature(request.policy, 1), -1)
    pieces, ends, tail = engine.vocabulary.pieces, sorted(engine.vocabulary.ends), sorted(engine.vocabulary.tail)
    found = dict.fromkeys(TEXTS, 0.0)
    for text in TEXTS:
        fitting = [i for i, piece in enumerate(pieces) if piece and piece in text.encode()]
        for size in range(1, len(text) + 1):
            for spelt in itertools.product(fitting, repeat=size):
                if b"".join(pieces[i] or b"" for i in spelt) == text.encode():
                    score = math.prod(float(p[i, token]) for i, token in enumerate(spelt))
                    behind = [p[size : size + 1, ends], p[size + 1 :, tail]]
                    found[text] += score * math.prod(float(row.sum()) for part in behind for row in part)
    return {text: share / sum(found.values()) for text, share in found.items()}


def drawn(engine: Engine, request: ResolvedRequest, count: int) -> list[str]:
    """The answers of as many seeds, in their order."""
    found = [(done.seed, done.text) for variant in engine.variants(request, count) for done in variant.answers]
    return [text for _, text in sorted(found)]


def test_texts_come_as_often_as_their_probability(engine: Engine) -> None:
    request, count = asked(engine, engine.language(choices_source(TEXTS))), 400
    seen = drawn(engine, request, count)
    shares = shares_by_hand(engine, request)
    assert sum(0.05 < share < 0.95 for share in shares.values()) > 1, "else nothing is tested"
    for text, share in shares.items():
        assert seen.count(text) / count == pytest.approx(share, abs=5 * math.sqrt(share * (1 - share) / count) + 2e-3)
    assert drawn(engine, request, 8) == seen[:8], "a seed repeats a draw"


def test_what_is_certain_is_drawn_and_what_is_drawn_is_accounted_for(engine: Engine) -> None:
    language = engine.language(schema_source(SCHEMA))
    for seed in range(3):
        request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=seed, draw=True), constraint=language))
        assert engine.run(request).text == ANSWER
    request = asked(engine, engine.language(choices_source(TEXTS)))
    done = [one for variant in engine.variants(request, 20) for one in variant.answers]
    assert all(request.language is not None and request.language.holds(one.tokens) for one in done)
    assert all(len(one.entropy) == len(one.log_mass) == len(one.settled_at) == len(one.tokens) for one in done)


def test_answers_of_many_canvases_are_drawn_whole(engine: Engine) -> None:
    """What one canvas draws is where the next goes on, and there is room to end."""
    schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 8, "maxItems": 9}
    language = engine.language(schema_source(schema, spaces=False))
    options = Options(steps=1, canvas=5, max_tokens=20, temperature=4.0, draw=True, seed=1)
    request = engine.resolve(Request("Well?", options=options, constraint=language))
    found = {one.text for one in engine.variants(request, 12)}
    assert len(found) > 1
    assert all(8 <= len(json.loads(text)) <= 9 for text in found)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (Options(preset="flow"), "temperature 0 and the preset flow"),
        (Options(top_k=4), "leave out top_k, top_p, temperature 0"),
        (Options(top_p=0.5), "leave out top_k, top_p, temperature 0"),
        (Options(temperature=0.0), "leave out top_k, top_p, temperature 0"),
        (Options(causal=True), "causal and draw were both given"),
    ],
)
def test_what_a_draw_cannot_honour_is_refused(engine: Engine, options: Options, said: str) -> None:
    language = engine.language(choices_source(TEXTS))
    drawing = Options(**vars(options) | {"draw": True})
    with pytest.raises(RequestError, match=re.escape(said)):
        engine.resolve(Request("a", options=drawing, constraint=language))


def test_the_shell_draws(shell: Shell) -> None:
    reported = set()
    for seed in "0123":
        words = ["--regex", "[a-z]{3}", "--max-tokens", "4", "--steps", "1", "--temperature", "10", "--seed", seed]
        reported.add(shell(["generate", "Well?", "--draw", *words]).out.strip())
    assert all(re.fullmatch("[a-z]{3}", text) for text in reported)
    assert len(reported) > 1


def test_a_gap_that_has_conditions_is_drawn_and_its_seams_stay(engine: Engine) -> None:
    """No answer of a language, but a span of one: the text behind it is pinned. Three letters of any word are open."""
    options, wanted = Options(draw=True, steps=2, temperature=10.0), GapConstraint(regex="[a-z]{3}")
    done = [engine.infill("Send ", " to", width=3, constraint=wanted, options=options, seed=seed) for seed in range(4)]
    assert all(one.text == f"Send {one.gap} to" and re.fullmatch("[a-z]{3}", one.gap) for one in done)
    assert len({one.gap for one in done}) > 1
    with pytest.raises(RequestError, match="draw is True without a constraint"):
        engine.infill("Send ", " to", width=3, options=options)

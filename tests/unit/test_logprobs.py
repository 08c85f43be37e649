"""Log-probabilities of an answer: of the distribution that the last step read, whatever shares the forward."""

import math
from dataclasses import replace

import pytest
from tests.helpers import PROMPT

from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Block
from redraft.engine.request import MOST_LOGPROBS, Options, Request
from redraft.engine.runner import run_alone
from redraft.errors import RequestError
from redraft.operations.engine import Engine

pytestmark = pytest.mark.typed


@pytest.mark.parametrize(
    "options", [Options(), Options(temperature=0.5, logit_bias=((300, 2.0),)), Options(causal=True)]
)
def test_they_are_the_distribution_whose_entropy_is_reported(engine: Engine, options: Options) -> None:
    """With every token of the vocabulary asked for, the entropy can be computed from them: an independent figure."""
    request = replace(engine.resolve(Request(PROMPT, chat=True, options=replace(options, seed=3))), logprobs=10**6)
    done = engine.run(request)
    assert len(done.logprobs) == len(done.tokens) > 0
    for token, entropy, (own, *likeliest) in zip(done.tokens, done.entropy, done.logprobs, strict=True):
        assert own[0] == token
        assert own in likeliest
        assert sum(math.exp(value) for _, value in likeliest) == pytest.approx(1, abs=1e-4)
        assert -sum(math.exp(value) * value for _, value in likeliest) == pytest.approx(entropy, abs=1e-4)
        assert likeliest == sorted(likeliest, key=lambda pair: -pair[1])
        if not options.causal:
            assert own[1] == likeliest[0][1], "a draft is the likeliest reading"


def test_they_are_the_same_alone_and_in_company(engine: Engine) -> None:
    asked = [engine.resolve(Request(PROMPT, chat=True, options=Options(seed=i, logprobs=2))) for i in range(3)]
    for request, done in zip(asked, engine.map(asked), strict=True):
        reported = [
            event for event in run_alone(engine.model, request, SeededNoise(request.seed)) if isinstance(event, Block)
        ]
        assert [row for block in reported for row in block.logprobs] == list(done.logprobs)


def test_none_are_kept_unless_asked_for(engine: Engine) -> None:
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=3)))
    assert engine.run(request).logprobs == ()


@pytest.mark.parametrize("count", [-1, MOST_LOGPROBS + 1])
def test_a_count_out_of_range_is_refused(engine: Engine, count: int) -> None:
    with pytest.raises(RequestError, match=f"logprobs is {count}"):
        engine.resolve(Request(PROMPT, chat=True, options=Options(logprobs=count)))

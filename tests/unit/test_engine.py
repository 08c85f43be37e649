"""The library's front door on the model in the package. That model will be replaced, so nothing it says is pinned."""

from __future__ import annotations

import os

import pytest
import torch
from tests.helpers import PROMPT

import redraft
from redraft.engine.events import Block, Draft, Event, Finished
from redraft.engine.request import Generation, Options, Request
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.errors import RequestError, WeightsError
from redraft.operations.engine import Engine

TURN = [{"role": "user", "content": PROMPT}]


@pytest.fixture(scope="module")
def answer(engine: Engine) -> Generation:
    done = engine.generate(PROMPT, chat=True, seed=7)
    assert len(done.text) > 6, "these tests need a model that answers"
    return done


def same(one: Generation, other: Generation) -> bool:
    keys = ("text", "tokens", "entropy", "finish", "seed", "steps", "commits", "prompt_tokens")
    return all(getattr(one, key) == getattr(other, key) for key in keys)


def test_a_string_with_chat_is_one_user_turn(engine: Engine, answer: Generation) -> None:
    assert same(engine.generate(TURN, seed=7), answer)
    assert engine.resolve(Request(PROMPT, chat=True)).prompt == engine.resolve(Request(TURN)).prompt


def test_a_string_alone_is_continued_as_it_stands(engine: Engine) -> None:
    prompt = engine.resolve(Request(PROMPT)).prompt
    assert prompt[0] == engine.text.bos_token_id
    assert engine.text.decode(prompt) == PROMPT
    assert len(prompt) < len(engine.resolve(Request(PROMPT, chat=True)).prompt)


def test_a_conversation_keeps_its_turns(engine: Engine) -> None:
    chat = [*TURN, {"role": "assistant", "content": "{}"}, {"role": "user", "content": "record\nKa wants melu."}]
    told = engine.text.decode(engine.resolve(Request(chat)).prompt)
    assert told.index("417") < told.index("{}") < told.index("wants")


def test_counts_agree_with_each_other(engine: Engine, answer: Generation) -> None:
    width = engine.config.model.canvas_length
    limit = engine.config.generation.max_new_tokens
    assert len(answer.entropy) == len(answer.tokens) <= limit
    assert all(nats >= 0 for nats in answer.entropy)
    assert answer.prompt_tokens == len(engine.resolve(Request(PROMPT, chat=True)).prompt)
    assert len(answer.steps) <= -(-limit // width)
    assert all(1 <= steps <= engine.config.generation.max_denoising_steps for steps in answer.steps)
    assert answer.commits == len(answer.steps) - 1
    assert answer.tokens_per_forward == len(answer.tokens) / sum(answer.steps)
    assert answer.tokens_per_pass == len(answer.tokens) / (sum(answer.steps) + answer.commits)
    assert answer.text == engine.text.decode(answer.tokens)
    assert 0 < answer.first_text_sec <= answer.seconds


def test_a_seed_that_was_not_given_is_drawn_told_and_good(engine: Engine) -> None:
    drawn = [engine.generate(PROMPT, chat=True, steps=1) for _ in range(3)]
    assert len({done.seed for done in drawn}) > 1
    for done in drawn:
        assert same(engine.generate(PROMPT, chat=True, steps=1, seed=done.seed), done)


def test_a_stop_string_cuts_the_text_and_says_so(engine: Engine, answer: Generation) -> None:
    stop = answer.text[3:5]
    cut = engine.generate(PROMPT, chat=True, seed=7, stop=["never said", stop])
    assert cut.text == answer.text[: answer.text.index(stop)]
    assert cut.finish == "stop"
    assert len(cut.entropy) == len(cut.tokens)
    assert same(engine.generate(PROMPT, chat=True, seed=7, stop=["never said"]), answer)


def test_a_stop_string_ends_the_work_too(engine: Engine, answer: Generation) -> None:
    """A request that went on behind a stop string would bill for text that nobody sees."""
    request = engine.resolve(
        Request(PROMPT, chat=True, options=Options(seed=7, max_tokens=256, stop=(answer.text[:2],)))
    )
    assert len(engine.run(request).steps) == 1


def test_a_string_is_not_a_list_of_stops(engine: Engine) -> None:
    """It became one stop string for each of its characters."""
    with pytest.raises(RequestError, match="stop is the string 'END'"):
        engine.generate(PROMPT, stop="END")


def test_watching_changes_nothing_and_shows_everything(engine: Engine, answer: Generation) -> None:
    request = engine.resolve(Request(PROMPT, chat=True, options=Options(seed=7)))
    handle = engine.submit(request, drafts=True)
    events = [delta.event for delta in handle.deltas()]
    assert same(handle.answer.generation(), answer)
    drafts = [event for event in events if isinstance(event, Draft)]
    blocks = [event for event in events if isinstance(event, Block)]
    assert tuple(block.steps for block in blocks) == answer.steps
    assert len(drafts) == sum(answer.steps)
    assert isinstance(events[-1], Finished)
    assert tuple(token for block in blocks for token in block.tokens) == answer.tokens


def test_giving_up_half_way_leaves_the_engine_usable(engine: Engine, answer: Generation) -> None:
    events = engine.submit(engine.resolve(Request(PROMPT, chat=True, options=Options(seed=1))), drafts=True).events()
    next(events)
    events.close()

    class Interrupting(Observer):
        def event(self, handle: Submitted, event: Event) -> None:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        engine.within(CancelScope(Interrupting())).generate(PROMPT, chat=True)
    assert same(engine.generate(PROMPT, chat=True, seed=7), answer)


@pytest.mark.skipif(
    os.environ.get("ATEN_CPU_CAPABILITY") == "avx2" and torch.cpu._is_amx_tile_supported(),
    reason="torch 2.13 packs bfloat16 for AMX whatever it is told the processor has, and then finds no AVX-512",
)
def test_bfloat16_loads_and_answers(answer: Generation) -> None:
    rounded = redraft.load("nano-sudoku", dtype="bfloat16")
    assert rounded.model.dtype == torch.bfloat16
    done = rounded.generate(PROMPT, chat=True, seed=7)
    assert len(done.tokens) == len(done.entropy) > 0
    assert done.prompt_tokens == answer.prompt_tokens


@pytest.mark.parametrize("dtype", ["float16", "int8", "", "Float32"])
def test_a_number_format_that_is_not_supported_is_refused(dtype: str) -> None:
    with pytest.raises(RequestError, match=f"dtype is '{dtype}'; supported: auto, float32, bfloat16"):
        redraft.load("nano-sudoku", dtype=dtype)


@pytest.mark.parametrize("device", ["moon", "", "cuda:99", "meta", "hpu"])
def test_a_device_that_is_not_there_is_refused(device: str) -> None:
    """ "meta" and "hpu" were internal errors; others printed pages of torch's internals."""
    with pytest.raises(RequestError, match=f"device '{device}' cannot be used") as caught:
        redraft.load("nano-sudoku", device=device)
    assert len(str(caught.value)) < 400


def test_a_model_that_is_not_there_is_refused() -> None:
    with pytest.raises(WeightsError, match="no-such-model"):
        redraft.load("no-such-model")


def test_keywords_win_over_options_and_the_rest_of_options_counts(engine: Engine) -> None:
    options = Options(seed=3, max_tokens=30, causal=True)
    both = engine.generate(PROMPT, chat=True, seed=4, max_tokens=5, options=options)
    assert (both.seed, len(both.tokens), both.steps) == (4, 5, (1,) * 5)
    alone = engine.generate(PROMPT, chat=True, options=options)
    assert alone.seed == 3

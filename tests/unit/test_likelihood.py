"""How likely a prompt is in the causal mode: against transformers, whatever shares the forward."""

import asyncio
import json
import math
from dataclasses import replace
from unittest.mock import Mock

import pytest
import torch
from tests.helpers import ORACLE, oracle_model, reference, side_by_side

from redraft.config import read_config
from redraft.diffusion.noise import SeededNoise
from redraft.engine.engine import Core
from redraft.engine.events import Finished, PromptRead
from redraft.engine.fields import field_likelihood
from redraft.engine.loop import Loop
from redraft.engine.prefixes import PREFILL_CHUNK
from redraft.engine.request import Generation, Options, Request, ResolvedRequest
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.errors import BusyError, DeadlineError, RequestError, RunError
from redraft.operations import fill, generate
from redraft.operations.engine import Engine
from redraft.operations.read_back import READING, Opinion, read_back, second_opinion
from redraft.operations.stream import AnswerStream

READ = Options(causal=True, read_prompt=True, logprobs=2, max_tokens=0, seed=1)
TEXT = "record\nSend 417 melu to Karomi."


@pytest.mark.filterwarnings("default")  # theirs are not ours to fix
def test_they_are_those_of_transformers() -> None:
    """Two prompts side by side, one of them longer than what is encoded at once."""
    folder = ORACLE / "ckpt"
    theirs = reference(folder)
    head, cap = theirs.get_input_embeddings().weight, theirs.config.text_config.final_logit_softcapping
    draw = torch.Generator().manual_seed(0)
    prompts = [torch.randint(0, 512, (length,), generator=draw).tolist() for length in (PREFILL_CHUNK + 40, 7)]
    requests = [build_request(prompt, READ, read_config(folder)) for prompt in prompts]
    reported = side_by_side(Loop(oracle_model()), requests)
    for i, prompt in enumerate(prompts):
        with torch.no_grad():
            hidden = theirs.model.encoder.language_model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
            log_p = torch.log_softmax(torch.tanh(hidden @ head.T / cap) * cap, dim=-1)
        read, end = reported[i]
        assert isinstance(read, PromptRead)
        assert end == Finished("length", 0)
        assert [row[0][0] for row in read.logprobs] == prompt[1:]
        for at, (own, *likeliest) in enumerate(read.logprobs):
            assert own[1] == pytest.approx(float(log_p[at, prompt[at + 1]]), abs=1e-4)
            values = log_p[at].topk(2).values.tolist()
            assert [value for _, value in likeliest] == pytest.approx(values, abs=1e-4)


def test_they_are_the_same_alone_in_company_and_behind_a_kept_prefix(engine: Engine) -> None:
    """The long prompt is asked for twice: what is kept of it spares no reading."""
    long = engine.text.encode(TEXT * 20, bos=True)
    assert len(long) > PREFILL_CHUNK
    requests = [engine.resolve(Request(ids, replace(READ, max_tokens=3))) for ids in (long, [2], long, long[:9])]
    for request, done in zip(requests, engine.map(requests), strict=True):
        alone = list(run_alone(engine.model, request, SeededNoise(request.seed)))
        assert alone[0] == PromptRead(list(done.prompt_logprobs))
        assert len(done.prompt_logprobs) == len(request.prompt) - 1


def test_an_answer_behind_a_prompt_that_is_read_is_the_same_and_tells_of_its_end(engine: Engine) -> None:
    """Its end, too, so that what stands behind the prompt is never nothing: clients cut the last one off."""
    ids = engine.text.chat([{"role": "user", "content": TEXT}])
    asked = replace(READ, max_tokens=64)
    read, plain = (engine.resolve(Request(ids, replace(asked, read_prompt=kind))) for kind in (True, False))
    assert (done := engine.run(read)).tokens == engine.run(plain).tokens
    assert done.finish == "stop"
    ends = [event for event in run_alone(engine.model, read, SeededNoise(1)) if isinstance(event, Finished)]
    ((token, value), *likeliest) = ends[0].end
    assert token in read.eos
    assert value <= likeliest[0][1] <= 0
    assert math.isfinite(value)


def test_an_answer_read_back_is_as_likely_as_when_it_was_written(engine: Engine) -> None:
    """From left to right, token after token, it was read by steps; here it is read as a prompt."""
    policy = engine.resolve(TEXT).policy
    hot = 1 / policy.schedule.temperature(policy.max_steps, policy.max_steps)  # the coolest, which it draws at, is 1
    request = Request(TEXT, Options(causal=True, logprobs=1, max_tokens=40, seed=1, temperature=hot), chat=True)
    done = engine.run(engine.resolve(request))
    written = [row[0][1] for row in done.logprobs]
    assert read_back(engine, request, done)[: len(written)] == pytest.approx(written, abs=1e-4)


def test_the_least_likely_token_of_a_value_counts_and_the_one_before_it(engine: Engine) -> None:
    done = engine.generate(TEXT, chat=True, seed=1)
    ends = [len(engine.text.decode(done.tokens[: i + 1])) for i in range(len(done.tokens))]
    value = json.loads(done.text)["qty"]
    before = ends.index(done.text.index(f"{value}", done.text.index('"qty"')))
    for at, low in ((before, "/qty"), (before + 1, "/qty"), (0, None)):
        log_p = [0.0] * len(done.tokens)
        log_p[at] = -2.0
        found = field_likelihood(engine.text, done, log_p)
        assert found == {name: pytest.approx(math.exp(-2.0) if name == low else 1.0) for name in found}


def test_an_empty_list_may_be_a_guess(engine: Engine) -> None:
    """It says that there was nothing, and whatever there was is lost."""
    text = '{"who":"Bo","lines":[]}'
    tokens = tuple(engine.text.encode(text, bos=False))
    done = replace(engine.generate("a", max_tokens=1, seed=1), text=text, tokens=tokens, begins=0)
    assert Opinion(done, (0.0,) * len(tokens)).guesses(engine.text) == []
    at = next(i for i in range(len(tokens)) if "[" in engine.text.decode(tokens[: i + 1]))
    assert Opinion(done, (*(0.0,) * at, -2.0, *(0.0,) * (len(tokens) - at - 1))).guesses(engine.text) == ["/lines"]
    full = replace(done, text='{"who":"Bo","lines":["a"]}')
    assert Opinion(done, (0.0,) * len(tokens), instead_of=full).guesses(engine.text) == ["/lines"]


def test_an_answer_about_an_image_is_not_read_back(engine: Engine) -> None:
    seen = replace(engine.resolve(Request([2, 9], Options(seed=1))), images=(Mock(),))
    with pytest.raises(RequestError, match="nothing can be read back"):
        read_back(engine, seen, engine.generate("a", max_tokens=1, seed=1))


def test_of_two_answers_the_likelier_is_taken_and_a_likely_one_costs_no_second(engine: Engine) -> None:
    """What a canvas left garbled is written from left to right, held to the same schema."""
    schema = "who, qty int, item"
    asked = engine.resolve(Request(TEXT, Options(seed=1, max_tokens=40), chat=True, schema=schema, compact=True))
    done = engine.run(asked)
    wrong = done.text.replace("Karomi", "Kamelu")
    garbled = replace(done, text=wrong, tokens=tuple(engine.text.encode(wrong, bos=False)))
    found = second_opinion(engine, asked, garbled)
    assert found.instead_of == garbled
    assert found.guesses(engine.text) == ["/who"]
    assert found.done.text == done.text != wrong
    assert sum(found.log_p) > sum(read_back(engine, asked, garbled))
    assert found.log_p == read_back(engine, asked, found.done)
    again = second_opinion(engine, asked, found.done)
    assert (again.done, again.instead_of, again.guesses(engine.text)) == (found.done, None, [])
    reading = engine.resolve(Request([*asked.prompt, *garbled.tokens], READING))
    with pytest.MonkeyPatch.context() as patch:  # the reading, and then what is written anew
        patch.setattr(Core, "submit", Mock(side_effect=[engine.submit(reading), BusyError("full")]))
        assert second_opinion(engine, asked, garbled).done == garbled
    timed = second_opinion(engine, replace(asked, deadline_sec=99.0), garbled)
    assert (timed.done.text, timed.instead_of) == (found.done.text, garbled)
    with pytest.raises(DeadlineError, match="no time is left"):
        second_opinion(engine, replace(asked, deadline_sec=garbled.seconds), garbled)
    free = second_opinion(engine, replace(asked, language=None), garbled)
    drawn = second_opinion(engine, replace(asked, policy=replace(asked.policy, draw=True)), garbled)
    assert (drawn.done, drawn.instead_of) == (garbled, None)
    assert (free.done, free.instead_of) == (garbled, None)


NESTED = {
    "$defs": {"L": {"enum": ["C++", "C#", "Java"]}},
    "properties": {"a%20": {"items": {"anyOf": [{"$ref": "#/$defs/L"}, {"type": "null"}]}, "type": "array"}},
    "type": "object",
}


@pytest.mark.parametrize(
    ("schema", "first", "second", "taken"),
    [
        ("a low|high", '{"a":"low"}', '{"a":"high"}', False),
        ("a low|high?", '{"a":"low"}', '{"a":null}', False),
        ("a low|high?", '{"a":null}', '{"a":"high"}', True),
        ("a, b low|high", '{"a":"x","b":"low"}', '{"a":"y","b":"low"}', True),
        ("a, b low|high", '{"a":"x","b":"low"}', '{"a":"y","b":"high"}', False),
        ("plan", '{"plan":"C"}', '{"plan":"C."}', False),
        ("plan", '{"plan":"C."}', '{"plan":"C"}', True),
        ("n int", '{"n":1}', '{"n":12}', True),
        (NESTED, '{"a%20":["C#"]}', '{"a%20":["Java"]}', False),
        (NESTED, '{"a%20":[]}', '{"a%20":["Java"]}', True),
    ],
)
def test_the_canvas_keeps_its_choices_and_its_ends_and_they_are_guesses(
    engine: Engine, monkeypatch: pytest.MonkeyPatch, schema: object, first: str, second: str, taken: bool
) -> None:
    """Read back, 16 of 48 choices that were right became wrong, and "plan C" became "C." in 9 of 20."""
    asked = engine.resolve(Request("x", Options(seed=1, max_tokens=30), chat=True, schema=schema))
    plain = replace(engine.generate("a", max_tokens=1, seed=1), begins=0, finish="stop", prompt_logprobs=())
    tokens = [tuple(engine.text.encode(text, bos=False)) for text in (first, second)]
    one, other = replace(plain, text=first, tokens=tokens[0]), replace(plain, text=second, tokens=tokens[1])

    def reading(nats: float, count: int) -> Mock:
        rows = ((0, 0.0),), *[((0, nats),)] * count
        read = replace(plain, prompt_logprobs=(rows[0],) * (len(asked.prompt) - 1) + rows[1:])
        return Mock(result=lambda: read)

    handles = [reading(-1.0, len(one.tokens)), Mock(result=lambda: other), reading(-0.001, len(other.tokens))]
    monkeypatch.setattr(Core, "submit", Mock(side_effect=handles))
    found = second_opinion(engine, asked, one)
    assert found.done.text == (second if taken else first)
    assert sum(found.done.steps) == sum(one.steps) + sum(other.steps), "both have cost something"
    assert (found.instead_of, found.beside) == ((one, None) if taken else (None, other))
    assert found.guesses(engine.text)
    assert handles[1].won.called == taken


def test_what_is_extracted_and_filled_in_gets_a_second_opinion_where_it_is_asked_for(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = []

    def spy(on: Core, request: ResolvedRequest, done: Generation) -> Opinion:
        heard.append(done.text)
        return Opinion(replace(done, text=done.text[:-1] + "2"), (0.0,) * len(done.tokens))

    monkeypatch.setattr(generate, "second_opinion", spy)
    monkeypatch.setattr(fill, "second_opinion", spy)
    assert engine.extract("1", {"const": 1}, read_back=True, seed=1).text == "2"
    filled = engine.fill("a = {{b: int(1..2)}}", read_back=True, options=Options(seed=1))
    assert (filled.text, filled.values) == ("a = 2", {"b": "2"})
    assert heard == ["1", heard[1]]
    assert engine.extract("1", {"const": 1}, seed=1).text == "1"
    engine.fill("a = {{b: int(1..2)}}", options=Options(seed=1))
    assert len(heard) == 2


def test_many_texts_are_extracted_as_each_alone_and_a_text_that_fails_does_not_end_the_rest(engine: Engine) -> None:
    texts = [TEXT, "Order 7 of 12", "", "x" * 100_000, TEXT]
    found = [*engine.extract_many((text for text in texts), "qty int", at_once=3, seed=4, read_back=True)]
    assert [isinstance(each, RequestError) for each in found] == [False, False, True, True, False]
    for i in (0, 1, 4):
        done, alone = found[i], engine.extract(texts[i], "qty int", seed=4 + i, read_back=True)
        assert isinstance(done, Generation)
        assert (done.text, done.guesses, done.seed) == (alone.text, alone.guesses, 4 + i)


def test_a_fault_of_the_program_is_one_texts_and_not_the_batches(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An empty list, and 1.2.3e4 in a text, ended a night's batch."""
    monkeypatch.setattr(Opinion, "guesses", Mock(side_effect=[[], ValueError("odd"), []]))
    found = [*engine.extract_many([TEXT, TEXT, TEXT], "qty int", seed=1, read_back=True)]
    assert [isinstance(each, RunError) for each in found] == [False, True, False]
    assert "ValueError: odd" in str(found[1])
    monkeypatch.undo()
    assert json.loads(engine.extract("Hello there.", {"const": []}, seed=1, read_back=True).text) == []


def test_a_full_queue_is_said_before_a_stream_begins(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was an event of a stream whose status was 200, so no client came back and no other replica was asked."""
    asked = engine.resolve(Request("x", Options(seed=1, max_tokens=4)))
    monkeypatch.setattr(Core, "submit", Mock(side_effect=BusyError("full")))

    async def begun() -> None:
        AnswerStream(engine, [asked], read_back=True)

    with pytest.raises(BusyError, match="full"):
        asyncio.run(begun())
    engine.loop.stop()

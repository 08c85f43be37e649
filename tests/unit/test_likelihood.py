"""How likely a prompt is in the causal mode: against transformers, whatever shares the forward."""

import math
from dataclasses import replace

import pytest
import torch
from tests.helpers import ORACLE, oracle_model, reference, side_by_side

from redraft.config import read_config
from redraft.diffusion.noise import SeededNoise
from redraft.engine.events import Finished, PromptRead
from redraft.engine.loop import Loop
from redraft.engine.request import Options, Request
from redraft.engine.resolve import build_request
from redraft.engine.runner import run_alone
from redraft.engine.scheduler import PREFILL_CHUNK
from redraft.operations.engine import Engine

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

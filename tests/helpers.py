"""What several test files need: a small config, small models with numbers worth comparing, and the oracle's files."""

from __future__ import annotations

import math
import multiprocessing
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import is_dataclass
from itertools import product, takewhile
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from redraft.cache import Prefix
from redraft.config import GenerationConfig, ModelConfig, parse_model
from redraft.constraints.condition.projection import Projection
from redraft.constraints.language import Vocabulary
from redraft.diffusion.noise import Noise, SeededNoise
from redraft.engine.events import Draft, Event
from redraft.engine.handle import Handle
from redraft.engine.loop import Loop
from redraft.engine.request import ResolvedRequest
from redraft.engine.runner import run_alone
from redraft.engine.scope import CancelScope, Observer, Submitted
from redraft.engine.sequence import CanvasSequence
from redraft.model.gemma import DiffusionGemma
from redraft.model.kernels import FAST, Kernels
from redraft.weights.build import random_model
from redraft.weights.load import load_model
from redraft.weights.save import save_model
from redraft.weights.source import SINGLE, WeightSource, locate

ROOT = Path(__file__).parents[1]
ORACLE = Path(__file__).parent / "oracle"
DATA = Path(__file__).parent / "data"
BYTES = Vocabulary((None, None, *(bytes([byte]) for byte in range(256))), frozenset({0}), frozenset({0, 1}))
"""A token for each byte; the first two are of no text, and the first of them is the end."""
SLIDING, FULL = "sliding_attention", "full_attention"

Shell = Callable[..., Any]
"""The fixture `shell`."""

# What nano-sudoku is asked in most tests, its answer, and a schema that the answer is of.
PROMPT = "record\nSend 417 melu to Karomi."
ANSWER = '{"who":"Karomi","qty":417,"item":"melu"}'
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"who": {"type": "string"}, "qty": {"type": "integer"}, "item": {"type": "string"}},
    "required": ["who", "qty", "item"],
    "additionalProperties": False,
}

# What float32 leaves open where the order of sums is not promised: logits of these models reach 30, and their roundings
# pass through two layers and a logarithm.
CLOSE = 1024 * torch.finfo(torch.float32).eps


def agree(ours: object, theirs: object) -> bool:
    """Whether two records, or lists of records, are equal in all but the last bits of their floats.

    For one request on two code paths: only alone and in a batch, on one path, are the bits promised to be the same.
    """
    if isinstance(ours, float) and isinstance(theirs, float):
        return math.isclose(ours, theirs, rel_tol=CLOSE, abs_tol=CLOSE)
    if is_dataclass(theirs):
        return type(ours) is type(theirs) and agree(list(vars(ours).values()), list(vars(theirs).values()))
    if isinstance(ours, list | tuple) and isinstance(theirs, list | tuple):
        return len(ours) == len(theirs) and all(map(agree, ours, theirs))
    return ours == theirs


def written_on_noise(
    goal: Projection,
    width: int,
    vocab: int,
    end: int,
    draw: torch.Generator,
    *,
    spread: float = 1.0,
    lifted: tuple[int, float],
) -> list[int]:
    """The answer of a model that has no idea, but likes one token by so many nats, in canvases of that width."""
    reported: list[int] = []
    while goal.left and not goal.is_over:
        logits = spread * torch.randn(width, vocab, generator=draw, dtype=torch.float64)
        logits[:, lifted[0]] += lifted[1]
        draft = goal(torch.log_softmax(logits, -1)).draft.tolist()
        content = list(takewhile(lambda token: token != end, draft))[: goal.left]
        reported, goal = reported + content, goal.after(content)
        if len(content) < width:
            break
    return reported


def released_json() -> dict[str, Any]:
    """The `config.json` of the released 26B model, text part, in its own spelling (model spec 5.1)."""
    text = {
        "model_type": "diffusion_gemma_text",
        "vocab_size": 262144,
        "hidden_size": 2816,
        "intermediate_size": 2112,
        "moe_intermediate_size": 704,
        "num_hidden_layers": 30,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "num_global_key_value_heads": 2,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_experts": 128,
        "top_k_experts": 8,
        "sliding_window": 1024,
        "max_position_embeddings": 262144,
        "layer_types": [FULL if i % 6 == 5 else SLIDING for i in range(30)],
        "rope_parameters": {
            SLIDING: {"rope_type": "default", "rope_theta": 1e4},
            FULL: {"rope_type": "proportional", "partial_rotary_factor": 0.25, "rope_theta": 1e6},
        },
    }
    return {
        "model_type": "diffusion_gemma",
        "canvas_length": 256,
        "eos_token_id": [1, 106, 50],
        "tie_word_embeddings": True,
        "text_config": text,
    }


def tiny_json(**text: Any) -> dict[str, Any]:
    """A `config.json` of a two-layer model, quick on a CPU; keywords replace keys of its text_config."""
    root = released_json()
    root |= {"canvas_length": 6, "eos_token_id": [1]}
    root["text_config"] |= {
        "vocab_size": 64,
        "hidden_size": 32,
        "intermediate_size": 24,
        "moe_intermediate_size": 16,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "num_global_key_value_heads": 1,
        "head_dim": 8,
        "global_head_dim": 16,
        "num_experts": 4,
        "top_k_experts": 2,
        "sliding_window": 8,
        "max_position_embeddings": 256,
        "layer_types": [SLIDING, FULL],
    }
    root["text_config"] |= text
    return root


def tiny_config(**text: Any) -> ModelConfig:
    """The ModelConfig of `tiny_json`."""
    config, unknown = parse_model(tiny_json(**text))
    assert not unknown, unknown
    return config


@torch.no_grad()
def peaked(model: DiffusionGemma, seed: int) -> DiffusionGemma:
    """The same model with every norm and scalar away from 1, both scalars of a layer apart, and peaked logits.

    An untrained model hides mistakes: norms that are 1 can be left out, and flat logits agree with anything.
    """
    draw = torch.Generator().manual_seed(seed)
    for name, tensor in sorted(model.state_dict().items()):
        noise = torch.randn(tensor.shape, generator=draw)
        if tensor.ndim == 1:
            tensor.copy_(1.0 + 0.2 * noise)
        elif name == "embed.weight":
            tensor.copy_(0.75 * noise)
        elif name.endswith("router.proj.weight"):
            tensor.copy_(1.5 * noise)
    return model.eval().requires_grad_(False)


def tiny_model(
    config: ModelConfig | None = None, seed: int = 0, *, dtype: torch.dtype = torch.float32, kernels: Kernels = FAST
) -> DiffusionGemma:
    """A peaked model in eval mode, of `tiny_config()` if no config is given."""
    return peaked(random_model(config or tiny_config(), seed, dtype=dtype, kernels=kernels), seed + 1)


def tiny_checkpoint(folder: Path, config: ModelConfig | None = None, **options: Any) -> DiffusionGemma:
    """Save a `tiny_model` in `folder` and return it; keywords go to `save_model`."""
    model = tiny_model(config)
    save_model(model, folder, generation=GenerationConfig(eos_token_ids=(1,)), **options)
    return model


def nano_copy(folder: Path, without: str = "") -> Path:
    """A copy of nano-sudoku, but for one file."""
    shutil.copytree(locate("nano-sudoku"), folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns(without))
    return folder


def edit_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the stored tensors of a checkpoint of one file."""
    tensors = load_file(folder / SINGLE)
    change(tensors)
    save_file(tensors, folder / SINGLE, metadata={"format": "pt"})


def vision_tensors(hidden: int) -> dict[str, Tensor]:
    """The oracle's vision tower, its projection cut to another width: transformers insists on having one."""
    source, projection = WeightSource(ORACLE / "ckpt"), "model.encoder.embed_vision.embedding_projection.weight"
    tensors = {name: source.read(name) for name in source.tensors if "vision" in name}
    return {name: tensor[:hidden] if name == projection else tensor for name, tensor in tensors.items()}


def oracle_model(dtype: torch.dtype = torch.float32, kernels: Kernels = FAST) -> DiffusionGemma:
    """The checkpoint that the forward dumps and the traces `generate_b1` and `generate_b2pad` were made with."""
    return load_model(ORACLE / "ckpt", dtype=dtype, kernels=kernels)[0]


@torch.no_grad()
def stable_model(dtype: torch.dtype = torch.float32, kernels: Kernels = FAST) -> DiffusionGemma:
    """The checkpoint of the trace `generate_stable`: residual branches damped, so that canvases settle."""
    model = oracle_model(torch.float32, kernels)
    for name, tensor in model.state_dict().items():
        if name.endswith(("post_attention_norm.weight", "post_ffw_norm.weight")):
            tensor.mul_(0.55)
        elif name.endswith("_scalar"):
            tensor.fill_(1.0)
    return model.to(dtype)


def reference(folder: Path, dtype: torch.dtype = torch.float32, experts: str = "eager") -> Any:
    """The checkpoint in transformers, every tensor found, none left over."""
    transformers = pytest.importorskip("transformers", minversion="5.23.0")
    transformers.utils.logging.disable_progress_bar()
    model, info = transformers.DiffusionGemmaForBlockDiffusion.from_pretrained(
        folder, dtype=dtype, attn_implementation="eager", experts_implementation=experts, output_loading_info=True
    )
    found = {key: info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys") if info[key]}
    assert not found, found
    return model.eval()


def new_prefix(model: DiffusionGemma) -> Prefix:
    """An empty cache of the model's shape, dtype and device."""
    return Prefix(model.config.layers, dtype=model.dtype, device=model.device)


def soften(model: DiffusionGemma, logits: Tensor) -> Tensor:
    """The soft embedding of `logits` as the reference makes it: softmax in float32, then the parameter dtype."""
    return model.soften(torch.softmax(logits.float(), dim=-1).to(model.dtype))


def with_kernels(model: DiffusionGemma, kernels: Kernels) -> DiffusionGemma:
    """A model of the same numbers that runs on other kernels."""
    twin = DiffusionGemma(model.config, kernels).to(model.dtype)
    twin.load_state_dict(model.state_dict())
    return twin.eval().requires_grad_(False)


@contextmanager
def holding(variable: ContextVar[Any], value: object) -> Iterator[None]:
    """A context variable has a value while the block runs."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


def python(code: str, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run some code that imports this program in a process of its own; it is given words and environment variables."""
    environment = os.environ | {"PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}", "OMP_NUM_THREADS": "1"} | variables
    command = [sys.executable, "-c", code, *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)


def forked(work: Callable[[], object]) -> None:
    """Run some work in a process of its own, with all that is imported here; it must end well."""
    child = multiprocessing.get_context("fork").Process(target=work)
    child.start()
    child.join(120)
    child.kill()
    child.join()
    assert child.exitcode == 0


@contextmanager
def beside(*works: Callable[[], object]) -> Iterator[list[threading.Thread]]:
    """Each work on a thread of its own while the block runs; behind it they have ended."""
    threads = [threading.Thread(target=work, daemon=True) for work in works]
    for thread in threads:
        thread.start()
    yield threads
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "it waits for ever"


class Listening(Observer):
    """Passes a request's events to a function, on the thread that turns the loop."""

    def __init__(self, listener: Callable[[Event], object], *, drafts: bool) -> None:
        self.listener, self.drafts = listener, drafts

    def event(self, handle: Submitted, event: Event) -> None:
        if self.drafts or not isinstance(event, Draft):
            self.listener(event)


def listen(
    loop: Loop,
    request: ResolvedRequest,
    listener: Callable[[Event], object],
    *,
    drafts: bool = False,
    behind: Handle | None = None,
) -> Handle:
    """Submit a request whose events a function takes."""
    return loop.submit(request, CancelScope(Listening(listener, drafts=drafts)), behind=behind)


def side_by_side(loop: Loop, requests: Sequence[ResolvedRequest], *, variants: bool = False) -> list[list[Event]]:
    """The events of each request, run to its end beside the others; variants wait for the prompt of the first."""
    found: list[list[Event]] = [[] for _ in requests]
    first = None
    for request, events in zip(requests, found, strict=True):
        handle = listen(loop, request, events.append, drafts=True, behind=first)
        first = first or (handle if variants else None)
    while loop.tick():
        loop.check()
    return found


def alone(model: DiffusionGemma, requests: Sequence[ResolvedRequest]) -> list[list[Event]]:
    """The events of each request, run without a loop."""
    return [list(run_alone(model, request, SeededNoise(request.seed))) for request in requests]


def opened(model: DiffusionGemma, request: ResolvedRequest, noise: Noise, *, drafts: bool) -> CanvasSequence:
    """A sequence before its first forward."""
    made = CanvasSequence(request=request, drafts=drafts)
    made.open(model, noise)
    return made


def completions(puzzle: Sequence[int], size: int) -> Iterator[tuple[int, ...]]:
    """Every grid that completes a Sudoku, cell after cell: no propagation, nothing shared with ours."""
    if 0 not in puzzle:
        yield tuple(puzzle)
        return
    at, (high, wide) = puzzle.index(0), {4: (2, 2), 6: (2, 3)}[size]
    row, column = divmod(at, size)
    near = {
        puzzle[r * size + c]
        for r, c in product(range(size), repeat=2)
        if r == row or c == column or (r // high, c // wide) == (row // high, column // wide)
    }
    for digit in {*range(1, size + 1)} - near:
        yield from completions([*puzzle[:at], digit, *puzzle[at + 1 :]], size)

"""Is this code the reference? The same checkpoint in transformers, compared step by step, teacher-forced.

    canvas, previous logits ──► ours                                        ──► difference ─┐
                           ├──► transformers: sdpa attention, grouped experts ─┬──┘         ├─► judged
                           ├──► transformers: eager attention ─────────────────┤            │
                           └──► transformers: eager experts ───────────────────┴─► noise ───┘

Every side sees the same canvas and the same previous logits at each step, so rounding cannot grow through the loop.
How much rounding is allowed is measured: transformers runs in ways that should agree, and our difference may be a small
multiple of theirs. Differences are those of a position, as a share of the logits' spread. The median and the ninth
decile of positions are judged, because a router in half precision sends a few tokens elsewhere for a last bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from redraft.cache import Prefix
from redraft.diffusion.canvas import fresh
from redraft.diffusion.denoise import step
from redraft.diffusion.noise import SeededNoise
from redraft.engine.request import Options, Request
from redraft.errors import RunError
from redraft.operations.engine import Engine
from redraft.shapes import Float, Tensor

WANTED = "transformers==5.23.0"
NETWORK = "DiffusionGemmaForBlockDiffusion"

WAYS = (("sdpa", "grouped_mm"), ("eager", "grouped_mm"), ("sdpa", "eager"))
"""Attention and experts of transformers; the first way is compared with ours, the others with the first."""

MULTIPLE = 3.0
"""On random checkpoints our difference was 0 to 1.8 times the reference's own; a forgotten norm in bfloat16 was 4.6
times, a swapped expert 17 times, and either 70,000 times in float32."""

LEAST_ROUNDINGS = 2.0
"""Machine epsilons of noise that are granted where transformers' ways happen to agree exactly."""


@dataclass(frozen=True)
class Difference:
    """Root mean square of Δlogit at a position, as a share of the logits' spread: median and ninth decile of positions.

    NaN if one of the positions is NaN.
    """

    median: float
    ninth_decile: float


@dataclass(frozen=True)
class PassDifference:
    """One pass: ours beside transformers, transformers beside itself, the largest |Δlogit| of ours as a share of the
    spread, and the share of positions whose argmax agrees."""

    name: str
    ours: Difference
    noise: Difference
    largest: float
    argmax: float


@dataclass(frozen=True)
class Verification:
    """The passes of one prompt, encoder first, then every denoising step; and all positions of all passes together."""

    transformers: str
    dtype: str
    passes: list[PassDifference]
    ours: Difference
    noise: Difference

    @property
    def limit(self) -> Difference:
        """The largest difference that rounding explains."""
        least = LEAST_ROUNDINGS * torch.finfo(getattr(torch, self.dtype)).eps
        return Difference(MULTIPLE * max(self.noise.median, least), MULTIPLE * max(self.noise.ninth_decile, least))

    @property
    def agrees(self) -> bool:
        """Whether rounding explains our difference; False where a number is NaN."""
        return self.ours.median <= self.limit.median and self.ours.ninth_decile <= self.limit.ninth_decile


@dataclass(frozen=True)
class _Pass:
    """Squared differences of each position of a pass, averaged over the vocabulary; `noise` has a row for each way."""

    name: str
    ours: Float[Tensor, "positions"]
    noise: Float[Tensor, "ways positions"]
    variance: float
    largest: float
    argmax: float


class _Reference:
    """transformers' model of the checkpoint, run in every way, each behind a prefix of its own."""

    def __init__(self, model: Any, prompt: Tensor) -> None:
        from transformers import DynamicCache

        self.model = model
        self.caches = [DynamicCache(config=model.config.text_config) for _ in WAYS]
        self.encoded = [self._encode(way, prompt) for way in range(len(WAYS))]

    def _use(self, way: int) -> Any:
        attention, experts = WAYS[way]
        self.model.set_attn_implementation(attention)
        self.model.set_experts_implementation(experts)
        return self.model

    def _encode(self, way: int, prompt: Tensor) -> Tensor:
        encoder = self._use(way).model.encoder.language_model
        hidden: Tensor = encoder(input_ids=prompt[None], past_key_values=self.caches[way]).last_hidden_state
        return hidden[0]

    def denoise(self, tokens: Tensor, previous: Tensor | None) -> list[Tensor]:
        """Logits of a canvas, every way."""
        return [
            self._use(way)(
                past_key_values=self.caches[way], decoder_input_ids=tokens[None], self_conditioning_logits=previous
            ).logits[0]
            for way in range(len(WAYS))
        ]


@torch.inference_mode()
def verify(engine: Engine, folder: Path, prompt: str, *, seed: int = 0, max_steps: int | None = None) -> Verification:
    """Compare a loaded checkpoint with transformers' own loading of it. Raises RunError without transformers."""
    model, dtype = engine.model, engine.model.dtype
    theirs, version = load_reference(folder, dtype)
    one_canvas = model.config.canvas_length
    options = Options(seed=seed, steps=max_steps, max_tokens=one_canvas, preset="reference")
    request = engine.resolve(Request(prompt, chat=engine.text.has_template, options=options))
    tokens = torch.tensor(request.prompt, device=model.device)
    reference = _Reference(theirs.to(model.device), tokens)
    prefix = Prefix(model.config.layers, dtype=dtype, device=model.device)
    hidden = model.encode(tokens, prefix)
    found = [_compare("encode", model.logits(hidden), [model.logits(one) for one in reference.encoded])]

    noise = SeededNoise(seed)
    canvas = fresh(noise, 0, request.width, model.config.vocab_size)
    previous = None
    while not canvas.settled and canvas.step < request.policy.max_steps:
        logits = model.denoise(canvas.tokens.to(model.device), canvas.soft, prefix)
        theirs_all = reference.denoise(canvas.tokens.to(model.device), previous)
        found.append(_compare(f"step {canvas.step + 1}", logits, theirs_all))
        temperature = request.policy.schedule.temperature(canvas.step + 1, request.policy.max_steps)
        previous = (logits / temperature).to(dtype)[None]
        canvas = step(canvas, logits, model, request.policy, noise)
    return judged(found, version, str(dtype).removeprefix("torch."))


def judged(passes: Sequence[_Pass], version: str, dtype: str) -> Verification:
    """The passes as shares of the spread of all logits."""
    spread = (sum(one.variance for one in passes) / len(passes)) ** 0.5
    found = []
    for one in passes:
        ours, noise = _share(one.ours[None], spread), _share(one.noise, spread)
        found.append(PassDifference(one.name, ours, noise, one.largest / spread, one.argmax))
    ours = _share(torch.cat([one.ours for one in passes])[None], spread)
    noise = _share(torch.cat([one.noise for one in passes], dim=1), spread)
    return Verification(version, dtype, found, ours, noise)


def load_reference(folder: Path, dtype: torch.dtype) -> tuple[Any, str]:
    """transformers' model of a checkpoint folder, and transformers' version.

    Raises RunError if transformers is not installed, too old to know this model, or cannot load this checkpoint.
    """
    try:
        import transformers
    except ImportError:
        raise RunError(f"transformers is not installed, and it is what to compare with: pip install {WANTED}") from None
    if not hasattr(transformers, NETWORK):
        raise RunError(
            f"transformers {transformers.__version__} has no {NETWORK}, which is what to compare with:"
            f" pip install {WANTED}"
        )
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    ways = {"attn_implementation": WAYS[0][0], "experts_implementation": WAYS[0][1]}  # config.json may name a program
    try:
        model = getattr(transformers, NETWORK).from_pretrained(folder, dtype=dtype, local_files_only=True, **ways)
    except Exception as error:  # of what config.json and its neighbours name, it reads more than we do
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise RunError(f"transformers cannot load {folder}, so there is nothing to compare with: {said}") from error
    return model.eval(), transformers.__version__


def _compare(name: str, ours: Float[Tensor, "rows vocab"], theirs: Sequence[Float[Tensor, "rows vocab"]]) -> _Pass:
    first, *others = (one.float() for one in theirs)
    off = ours.float() - first
    return _Pass(
        name,
        off.square().mean(-1).cpu(),
        torch.stack([(one - first).square().mean(-1).cpu() for one in others]),
        float(first.var()),
        float(off.abs().max()),
        float((ours.argmax(-1) == first.argmax(-1)).float().mean()),
    )


def _share(squares: Float[Tensor, "ways positions"], spread: float) -> Difference:
    """The largest over the ways."""
    levels = torch.tensor([0.5, 0.9], dtype=torch.float64)
    median, most = (squares.double().sqrt().quantile(levels, dim=1).amax(1) / spread).tolist()
    return Difference(median, most)

"""Is this code the reference? The same checkpoint in transformers, compared step by step, teacher-forced.

Our loop runs one canvas. At every step transformers is shown the same canvas and the same previous logits, and its
logits are compared with ours before either moves on, so that differences of rounding cannot grow through the loop.
"""

from __future__ import annotations

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

WANTED = "transformers==5.23.0"
NETWORK = "DiffusionGemmaForBlockDiffusion"


@dataclass(frozen=True)
class StepDifference:
    """One step: the largest |Δlogit|, and the share of positions whose argmax agrees."""

    step: int
    logits: float
    argmax: float


@dataclass(frozen=True)
class Verification:
    """Differences from transformers on one prompt: encoder next-token logits, then every denoising step."""

    transformers: str
    encode: float
    steps: list[StepDifference]

    @property
    def largest(self) -> float:
        """The largest |Δlogit| anywhere; NaN if there is one, which Python's own max would skip."""
        return float(torch.tensor([self.encode, *(found.logits for found in self.steps)]).max())


@torch.inference_mode()
def verify(engine: Engine, folder: Path, prompt: str, *, seed: int = 0, max_steps: int | None = None) -> Verification:
    """Compare a loaded checkpoint with transformers' own loading of it. Raises RunError without transformers."""
    theirs, version = load_reference(folder, engine.model.dtype)
    request = engine.resolve(
        Request(prompt, chat=engine.text.has_template, options=Options(seed=seed, steps=max_steps, preset="reference"))
    )
    tokens = torch.tensor([request.prompt])
    cache = _dynamic_cache(theirs)
    encoded = theirs.model.encoder.language_model(input_ids=tokens, past_key_values=cache).last_hidden_state
    prefix = Prefix(engine.model.config.layers, dtype=engine.model.dtype, device=engine.model.device)
    hidden = engine.model.encode(tokens[0], prefix)
    encode = _largest(engine.model.logits(hidden), engine.model.logits(encoded[0]))

    noise = SeededNoise(seed)
    canvas = fresh(noise, 0, request.width, engine.model.config.vocab_size)
    found, previous = [], None
    while not canvas.settled and canvas.step < request.policy.max_steps:
        logits = engine.model.denoise(canvas.tokens, canvas.soft, prefix)
        their_logits = theirs(
            past_key_values=cache, decoder_input_ids=canvas.tokens[None], self_conditioning_logits=previous
        ).logits[0]
        agreed = (logits.argmax(-1) == their_logits.argmax(-1)).float().mean()
        found.append(StepDifference(canvas.step + 1, _largest(logits, their_logits), float(agreed)))
        temperature = request.policy.schedule.temperature(canvas.step + 1, request.policy.max_steps)
        previous = (logits / temperature).to(engine.model.dtype)[None]
        canvas = step(canvas, logits, engine.model, request.policy, noise)
    return Verification(version, encode, found)


def load_reference(folder: Path, dtype: torch.dtype) -> tuple[Any, str]:
    """transformers' model of a checkpoint folder, and transformers' version.

    Raises RunError if transformers is not installed or too old to know this model.
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
    model = getattr(transformers, NETWORK).from_pretrained(folder, dtype=dtype, local_files_only=True)
    return model.eval(), transformers.__version__


def _dynamic_cache(theirs: Any) -> Any:
    from transformers import DynamicCache

    return DynamicCache(config=theirs.config.text_config)


def _largest(a: torch.Tensor, b: torch.Tensor) -> float:
    return float((a.float() - b.float()).abs().max())

"""The self-check: on a card not seen before, each kernel is compared with its plain twin at the checkpoint's shapes.

    kernels of the load ──► each beside its twin, in seconds ──► those that agree; a twin for each that does not
                                       │
                                       ▼
                        kernels/KEY.json in the user's cache: the next load reads it, `redraft doctor` prints it

The key is everything that a kernel's code depends on: card, driver, torch, Triton, our sources, shapes and formats. So
a wrong kernel costs speed and never an answer, in no tile that forwards use. Whether two results agree is decided by
the number format: a few of its rounding steps, relatively, and a few percent where rows are rounded to 8 bits first.
"""

from __future__ import annotations

import hashlib
import json
import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from redraft.cache import Prefix
from redraft.constraints.language import Language
from redraft.engine.settings import MOST_CANVASES
from redraft.errors import ran_out
from redraft.files import write_json
from redraft.home import cache_folder
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.head import Head, pass_tiles
from redraft.model.kernels import FAST, Kernels
from redraft.model.linear import PackedLinear, PackedMatrix
from redraft.model.moe import Experts, ExpertsForm, PackedExperts, experts_library
from redraft.model.rows import Mode, Span
from redraft.shapes import Tensor
from redraft.weights.defaults import Report, dtype_name

AGREES, LIBRARY = "agrees", "library"
"""A verdict; and the part that stands for the experts by torch's own grouped matmuls, tried where ours are wrong."""
PROMPT = 37
"""Rows of a prompt chunk in the check: a remainder that fits no tile."""
_STEPS, _LEAST, _ROUNDED = 8, 1e-3, 0.05
_SHARP = 4.0


def checked(
    model: DiffusionGemma,
    report: Report,
    language: Callable[[], Language] | None = None,
    *,
    kept: bool = True,
) -> dict[str, str]:
    """Give the model a twin for each kernel that does not agree with it. Returns for each part AGREES or what is wrong.

    `language` makes a constraint for the kernels of conditioning. Without `kept` nothing is read or written.
    """
    key = key_of(model)
    path = results() / f"{hashlib.blake2b(json.dumps(key, sort_keys=True).encode(), digest_size=12).hexdigest()}.json"
    found = _read(path) if kept else None
    if found is None:
        began = time.monotonic()
        try:
            found = dict(_verdicts(model, report, language))
        except Exception as error:
            if not ran_out(error):
                raise
            report("there is no memory to compare the kernels with plain torch, so they run unchecked")
            return {}
        report(f"the kernels were compared with plain torch in {time.monotonic() - began:.1f} s")
        if kept:
            _write(path, {"key": key, "found": found})
    wrong = {part: why for part, why in found.items() if why != AGREES}
    for part, why in wrong.items():
        grouped = part == "experts" and found.get(LIBRARY) == AGREES
        other = "torch's grouped matmuls take" if grouped else "plain torch takes"
        report(f"the kernel of {part} is not used, {other} its place: {why}")
    twins = {part: getattr(FAST, part) for part in wrong if part != LIBRARY}
    if found.get(LIBRARY) == AGREES:
        twins["experts"] = experts_library
    if twins:
        use(model, twins)
    return found


def key_of(model: DiffusionGemma) -> dict[str, Any]:
    """Everything that the result depends on, in words."""
    device = model.device
    there = device.type == "cuda"
    shapes = {
        f"{re.sub(r'[.][0-9]+[.]', '.', name)} {list(tensor.shape)} {dtype_name(tensor.dtype)}"
        for name, tensor in model.state_dict().items()
    }
    return {
        "card": torch.cuda.get_device_name(device) if there else platform.machine(),
        "compute": list(torch.cuda.get_device_capability(device)) if there else [],
        "driver": driver(),
        "torch": str(torch.__version__),
        "triton": _triton(),
        "redraft": _sources(),
        "kernels": sorted(f"{one.name} {_name(getattr(model.kernels, one.name))}" for one in fields(Kernels)),
        "shapes": sorted(shapes),
    }


def results() -> Path:
    """The folder of this user's results."""
    return cache_folder() / "kernels"


def known() -> Iterator[tuple[str, dict[str, str]]]:
    """Every kept result that can be read: card and versions, and what was found of each part."""
    for path in sorted(results().glob("*.json")):
        with suppress(OSError, ValueError, KeyError, TypeError):
            held = json.loads(path.read_text(encoding="utf-8"))
            key = held["key"]
            named = f"{key['card']}, driver {key['driver']}, torch {key['torch']}, redraft {key['redraft']}"
            yield named, {str(part): str(why) for part, why in held["found"].items()}


def driver() -> str:
    """The NVIDIA driver's version; "unknown" without one."""
    try:
        line = Path("/proc/driver/nvidia/version").read_text(encoding="utf-8").partition("\n")[0]
    except OSError:
        return "unknown"
    found = re.search(r"\d+\.\d+(\.\d+)?", line)
    return found[0] if found else "unknown"


def use(model: nn.Module, parts: dict[str, Any]) -> None:
    """Run a model or a layer on other forms of some operations."""
    for module in model.modules():
        if isinstance(kernels := getattr(module, "kernels", None), Kernels):
            setattr(module, "kernels", replace(kernels, **parts))  # noqa: B010  # a module's attributes are not typed
        if "product" in parts and isinstance(module, PackedLinear):
            module.product = parts["product"]


def _verdicts(
    model: DiffusionGemma, report: Report, language: Callable[[], Language] | None
) -> Iterator[tuple[str, str]]:
    checks: dict[str, Callable[[], Iterator[tuple[str, float, float]]]] = {
        "norm": lambda: _norm(model),
        "product": lambda: _product(model),
        "experts": lambda: _experts(model),
        "head": lambda: _head(model),
        "layer": lambda: _layers(model),
    }
    if language is not None:
        checks["condition"] = lambda: _condition(model, language())
    for part, check in checks.items():
        if getattr(model.kernels, part) is getattr(FAST, part):
            continue
        report(f"comparing the kernel of {part} with plain torch")
        verdict = _verdict(check)
        yield part, verdict
        if part == "experts" and verdict != AGREES and _in_library(model):
            yield LIBRARY, _verdict(lambda: _experts(model, experts_library))


def _in_library(model: DiffusionGemma) -> bool:
    """Whether torch's grouped matmuls read the experts' format."""
    layer = model.layers[0]
    return isinstance(layer, Layer) and isinstance(layer.experts, Experts) and model.dtype == torch.bfloat16


@torch.inference_mode()
def _verdict(check: Callable[[], Iterator[tuple[str, float, float]]]) -> str:
    """What comes of a check that yields (what, relative difference, the most it may be)."""
    try:
        for what, off, most in check():
            if not off <= most:  # a NaN is no agreement
                return f"{what} is off by {off:.2g}, which may be {most:.2g}"
    except Exception as error:  # a compiler, a driver and a launch fail in many ways
        if ran_out(error):
            raise
        return f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return AGREES


def _norm(model: DiffusionGemma) -> Iterator[tuple[str, float, float]]:
    x, eps = _random(model, model.config.canvas_length, model.config.hidden_size), model.config.norm_eps
    weights = [model.norm.weight, None]
    for ours, plain in zip(model.kernels.norm(x, weights, eps), FAST.norm(x, weights, eps), strict=True):
        yield "a norm", off(ours, plain), _most(model)


def _product(model: DiffusionGemma) -> Iterator[tuple[str, float, float]]:
    seen = set[tuple[object, ...]]()
    for module in model.modules():
        if not isinstance(module, PackedLinear) or (form := (module.format, tuple(module.codes.shape))) in seen:
            continue
        seen.add(form)
        for rows in _counts(model, module, model.config.canvas_length, PROMPT, 1):
            x = _random(model, rows, module.packed.shape[-1])
            ours, plain = model.kernels.product(x, module.packed), FAST.product(x, module.packed)
            what = f"a product of {rows} rows with {list(module.packed.shape)} in {module.format.name}"
            yield what, off(ours, plain), _most(model, rounded=module.format.round_rows)


def _experts(model: DiffusionGemma, form: ExpertsForm | None = None) -> Iterator[tuple[str, float, float]]:
    kinds: dict[object, Layer] = {}
    for layer in model.layers:
        if isinstance(layer, Layer) and isinstance(layer.experts, Experts | PackedExperts):
            matrices = layer.experts.gate_up, layer.experts.down
            kinds.setdefault(tuple(getattr(matrix, "format", None) for matrix in matrices), layer)
    for layer in kinds.values():
        rounded = isinstance(layer.experts, PackedExperts) and layer.experts.gate_up.format.round_rows
        for rows in _counts(model, layer.experts, model.config.canvas_length, PROMPT, 1):
            x = _random(model, rows, model.config.hidden_size)
            weights, chosen = layer.router(x)
            ours = (form or model.kernels.experts)(layer.experts, x, weights, chosen)
            plain = FAST.experts(layer.experts, x, weights, chosen)
            yield f"the experts' sum of {rows} rows", off(ours, plain), _most(model, rounded=rounded)


def _head(model: DiffusionGemma) -> Iterator[tuple[str, float, float]]:
    rows = model.config.canvas_length
    head = Head(model.table, model.config.logit_cap, model.dtype)
    x = _random(model, rows, model.config.hidden_size)
    heat = torch.full((rows, 1), 0.7, device=model.device)
    ours, plain = model.kernels.head(x, head, heat), pass_tiles(x, head, heat)
    yield "the head's largest logit", off(ours.largest, plain.largest), _most(model)
    yield "the head's sum", off(ours.total.log() + ours.largest, plain.total.log() + plain.largest), _most(model)
    yield "the head's entropy", off(_entropy(ours), _entropy(plain)), _most(model)
    yield "the soft embedding", off(ours.soft, plain.soft), _most(model)
    # In few bits two tokens may share the first place.
    yield "the share of other likeliest tokens", float((ours.argmax != plain.argmax).float().mean()), 0.05


def _layers(model: DiffusionGemma) -> Iterator[tuple[str, float, float]]:
    kinds: dict[object, int] = {}
    for i, one in enumerate(model.config.layers):
        kinds.setdefault((one.window, one.head_dim, one.num_kv_heads), i)
    packed = any(isinstance(part, PackedMatrix) and part.format.round_rows for part in model.modules())
    for index in kinds.values():
        layer = model.layers[index]
        if not isinstance(layer, Layer):
            continue
        kind = "full" if model.config.layers[index].is_full else "sliding"
        for rows in _counts(model, layer.attention, PROMPT + 1 + model.config.canvas_length):
            x = _random(model, PROMPT + max(rows, PROMPT + 2), model.config.hidden_size)
            ours, plain = (_through(model, layer, index, x, fast=fast) for fast in (False, True))
            for what, a, b in zip(("rows", "keys", "values"), ours, plain, strict=True):
                yield f"a {kind} layer's {what} in a forward of {rows}", off(a, b), _most(model, rounded=packed)


def _through(model: DiffusionGemma, layer: Layer, index: int, x: Tensor, *, fast: bool) -> tuple[Tensor, ...]:
    """What a layer makes of a prompt, of another behind it beside a canvas of all other rows; the keys and values."""
    prefixes = [Prefix(model.config.layers, dtype=model.dtype, device=model.device) for _ in range(2)]
    first = model.rows([Span(prefixes[0], PROMPT, Mode.ENCODE)])
    own = layer.kernels
    try:
        if fast:
            use(layer, vars(FAST))
        begun = layer(x[:PROMPT], first)
        first.commit()
        canvas = Span(prefixes[1], len(x) - 2 * PROMPT - 1, Mode.DENOISE)
        rows = layer(x[PROMPT:], model.rows([Span(prefixes[0], PROMPT + 1, Mode.ENCODE), canvas]))
    finally:
        use(layer, vars(own))
    held = prefixes[0].layers[index]
    keys, values = (part[:, : 2 * PROMPT + 1] for part in (held.keys, held.values))
    return torch.cat([begun, rows]), keys.clone(), values.clone()


def _condition(model: DiffusionGemma, language: Language) -> Iterator[tuple[str, float, float]]:
    width = 8
    log_p = (_SHARP * _random(model, width, model.config.vocab_size).float()).log_softmax(-1)
    ours, plain = language.start(width, 0, model.kernels.condition)(log_p), language.start(width)(log_p.cpu())
    yield "a constraint's probability", abs(ours.log_total - plain.log_total), _LEAST * width
    yield "a constraint's draft", float((ours.draft.cpu() != plain.draft).sum()), 0
    yield "a constraint's distributions", off(ours.shifted().exp().cpu(), plain.shifted().exp()), _LEAST


def _counts(model: DiffusionGemma, part: Any, *usual: int) -> Sequence[int]:
    """`usual` row counts, and one for every other tile that forwards use."""
    from redraft.model.gpu.choices import with_other_tiles

    return with_other_tiles(model, part, usual, MOST_CANVASES)


def off(ours: Tensor, plain: Tensor) -> float:
    """The norm of a difference over the norm of the plain result."""
    return float((ours.float() - plain.float()).norm() / plain.float().norm().clamp(min=1e-30))


def _entropy(sums: Any) -> Tensor:
    found: Tensor = sums.total.log() - sums.weighted / sums.total
    return found


def _most(model: DiffusionGemma, *, rounded: bool = False) -> float:
    return _ROUNDED if rounded else max(_LEAST, _STEPS * torch.finfo(model.dtype).eps)


def _random(model: DiffusionGemma, rows: int, width: int) -> Tensor:
    draw = torch.Generator().manual_seed(rows * width)
    return torch.randn(rows, width, generator=draw).to(model.device, model.dtype)


def _name(form: object) -> str:
    return "none" if form is None else str(getattr(form, "__qualname__", type(form).__qualname__))


def _sources() -> str:
    """A digest of the files that kernels and twins are written in."""
    digest = hashlib.blake2b(digest_size=4)
    for path in sorted((Path(__file__).parents[1] / "model").rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _triton() -> str:
    try:
        import triton
    except ImportError:
        return "none"
    return str(triton.__version__)


def _read(path: Path) -> dict[str, str] | None:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["found"]
        parts = {LIBRARY, *(one.name for one in fields(Kernels))}
        return {str(part): str(why) for part, why in found.items() if part in parts}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None  # it is lost or damaged: the check runs again


def _write(path: Path, value: Mapping[str, object]) -> None:
    """Keep a result; where nothing can be kept, the next load checks again."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, value)

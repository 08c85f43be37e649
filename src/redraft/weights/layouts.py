"""The layouts of packed matrices in files: names, shapes and number types.

For a linear layer `p`, of `outer` rows of `inner` numbers (packed files store experts one by one):

    int8    p.weight I8, p.weight_scale [outer, 1]                                             compressed-tensors
    fp8     p.weight F8_E4M3, p.weight_scale [outer, 1] or one number                          compressed-tensors
    int4    p.weight_packed I32 [outer, inner/8], p.weight_scale [outer, groups], p.weight_shape; also `words.py`
    nvfp4   p.weight_packed U8, p.weight_scale F8_E4M3, p.weight_global_scale (divides)        compressed-tensors
    nvfp4   p.weight U8, p.weight_scale F8_E4M3, p.weight_scale_2 (multiplies)                 modelopt

A layout is recognised by the headers; the config's quant_method only has to be one of METHODS. Scales of activations
and of the cache are not read: rows are rounded one by one, or not at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from redraft.errors import WeightsError
from redraft.model.packed import FP8, INT4, INT8, NVFP4, Format, Packed
from redraft.shapes import Tensor
from redraft.weights.names import Slot
from redraft.weights.source import Stored
from redraft.weights.words import in_rows, int4_of, shapes_of, style_of

METHODS = ("compressed-tensors", "modelopt", "awq", "gptq")
FLOATS = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_UNREAD = ("input_scale", "input_global_scale", "weight_shape", "k_scale", "v_scale", "kv_scale")


@dataclass(frozen=True)
class Matrix:
    """One stored matrix and its place: rows of `slot.target`, of one expert's if it is a stack."""

    prefix: str
    slot: Slot
    shape: tuple[int, int]
    start: int
    expert: int | None = None

    @property
    def rows(self) -> slice:
        """Rows of the target."""
        return slice(self.start, self.start + self.shape[0])


@dataclass(frozen=True)
class StoredPiece:
    """One stored tensor of a matrix: its codes, scale, top or zero (`model/packed.py`), or the plain matrix. `style` is
    that of `words.py`."""

    stored: str
    matrix: Matrix
    kind: str
    form: Format | None
    style: str = ""


@dataclass(frozen=True)
class Layout:
    """A checkpoint's content: slots stored whole, pieces of matrices stored one by one, names that are not read, and
    pieces that are only checked to say nothing."""

    whole: tuple[Slot, ...]
    pieces: tuple[StoredPiece, ...]
    formats: Mapping[str, Format]
    unread: tuple[str, ...]
    trivial: tuple[StoredPiece, ...] = ()


def read_layout(tensors: Mapping[str, Stored], wanted: Sequence[Slot], settings: Mapping[str, Any]) -> Layout:
    """How each wanted slot is stored. `settings` is the config's quantization_config, empty if it has none.

    Raises WeightsError for an unsupported method or layout, and for scales that are missing or of another shape. A slot
    that is absent counts as whole; the loader reports it.
    """
    method = settings.get("quant_method", "modelopt" if settings.get("producer") else None)
    if settings and method not in METHODS:
        raise WeightsError(f"quantization_config.quant_method is {method!r}; supported: {', '.join(METHODS)}")
    style, symmetric = style_of(settings), settings.get("quant_method") == "gptq" and settings.get("sym", True) is True
    whole: list[Slot] = []
    pieces: list[StoredPiece] = []
    trivial: list[StoredPiece] = []
    found: dict[str, Format | None] = {}
    unread: list[str] = []
    for slot in wanted:
        is_plain = slot.stored in tensors and tensors[slot.stored].dtype in FLOATS
        every = () if is_plain else matrices(slot)
        parts = [matrix for matrix in every if _is_there(tensors, matrix.prefix)]
        if not parts:
            whole.append(slot)
            continue
        for matrix in parts:
            form = _identify(tensors, matrix, style, symmetric=symmetric)
            if found.setdefault(slot.target, form) != form:
                raise WeightsError(
                    f"{matrix.prefix} is stored as {_described(form)}, other parts of {slot.target} as"
                    f" {_described(found[slot.target])}; one matrix must have one format"
                )
            pieces += _pieces(tensors, matrix, form, style)
            trivial += _trivial(tensors, matrix, form, style)
            unread += [name for end in _UNREAD if (name := f"{matrix.prefix}.{end}") in tensors]
        if len(parts) < len(every):
            lacking = next(one.prefix for one in every if not _is_there(tensors, one.prefix))
            raise WeightsError(f"the checkpoint lacks {lacking}, but has other parts of that matrix; fetch it again")
    mixed = {slot.target for slot in whole} & found.keys()
    if mixed:
        raise WeightsError(f"{min(mixed)} is stored partly packed and partly plain; one matrix must have one format")
    packed = {target: form for target, form in found.items() if form is not None}
    return Layout(tuple(whole), tuple(pieces), packed, tuple(unread), tuple(trivial))


def matrices(slot: Slot) -> tuple[Matrix, ...]:
    """The linear layers of a slot in a packed file; none if the slot is never packed."""
    if ".experts." in slot.stored:
        base, name = slot.stored.rsplit(".", 1)
        count, outer, inner = slot.shape
        kinds = ("gate_proj", "up_proj") if name == "gate_up_proj" else ("down_proj",)
        each = outer // len(kinds)
        return tuple(
            Matrix(f"{base}.{e}.{kind}", slot, (each, inner), i * each, e)
            for e in range(count)
            for i, kind in enumerate(kinds)
        )
    inside = slot.target.startswith("layers.") and (".attention." in slot.target or ".mlp." in slot.target)
    if inside and len(slot.shape) == 2:
        return (Matrix(slot.stored.removesuffix(".weight"), slot, (slot.shape[0], slot.shape[1]), slot.start),)
    return ()


def stored_names(prefix: str, packed: Packed) -> dict[str, Tensor]:
    """A packed matrix in the layout of compressed-tensors, by name."""
    form = packed.format
    scale = packed.scale.contiguous()
    if form.bits == 8:
        return {f"{prefix}.weight": packed.codes.contiguous(), f"{prefix}.weight_scale": scale}
    if packed.top is None:
        shape = torch.tensor(packed.shape, dtype=torch.int64)
        codes = packed.codes.contiguous().view(torch.int32)
        return {f"{prefix}.weight_packed": codes, f"{prefix}.weight_scale": scale, f"{prefix}.weight_shape": shape}
    top = packed.top[0]
    named = {"weight_packed": packed.codes.contiguous(), "weight_scale": scale, "weight_global_scale": 1 / top}
    return {f"{prefix}.{name}": tensor for name, tensor in named.items()}


def convert(piece: StoredPiece, tensor: Tensor) -> Tensor:
    """A stored tensor in the layout of `Packed`."""
    outer = piece.matrix.shape[0]
    if piece.style or piece.kind == "zero" or tensor.dtype == torch.int32:
        return in_rows(piece.style, piece.kind, tensor, outer)
    if piece.kind == "codes":
        return tensor
    if piece.kind == "top":
        value = tensor.float() if piece.stored.endswith("weight_scale_2") else 1 / tensor.float()
        return value.reshape(1, 1).expand(outer, 1)
    return tensor.reshape(1, 1).expand(outer, 1) if tensor.numel() == 1 else tensor.reshape(outer, -1)


def check_plain(stored: Stored, wanted: tuple[int, ...], remedy: str = "") -> None:
    """Raise WeightsError for a plain tensor of another shape, or stored as no plain numbers."""
    _check_shape(stored, wanted)
    if stored.dtype not in FLOATS:
        raise WeightsError(
            f"{stored.file}: {stored.name} is stored as {stored.dtype}; supported: {', '.join(FLOATS)}{remedy}"
        )


def _is_there(tensors: Mapping[str, Stored], prefix: str) -> bool:
    return any(f"{prefix}.{name}" in tensors for name in ("weight_packed", "weight", "qweight"))


def _described(form: Format | None) -> str:
    return "plain numbers" if form is None else f"{form.name} with {form.scale_dtype} scales"


def _identify(tensors: Mapping[str, Stored], matrix: Matrix, style: str, *, symmetric: bool) -> Format | None:
    """The format of one stored matrix, None if it is plain. Raises WeightsError for an unsupported one."""
    prefix, (outer, inner) = matrix.prefix, matrix.shape
    if f"{prefix}.qweight" in tensors:
        return _identify_words(tensors, matrix, style, zeros=not symmetric)
    name = "weight_packed" if f"{prefix}.weight_packed" in tensors else "weight"
    codes = tensors[f"{prefix}.{name}"]
    if name == "weight" and codes.dtype in FLOATS:
        _check_shape(codes, matrix.shape, "plain")
        return None
    kind = (name, codes.dtype)
    known = {("weight", "I8"): INT8, ("weight", "F8_E4M3"): FP8, ("weight_packed", "I32"): INT4}
    known |= {("weight_packed", "U8"): NVFP4, ("weight", "U8"): NVFP4}
    if kind not in known:
        raise WeightsError(
            f"{codes.file}: {codes.name} is stored as {codes.dtype}; supported: plain F32, BF16, F16, and packed"
            " I8, F8_E4M3, I32 (int4) and U8 (nvfp4)"
        )
    form, zeros = known[kind], f"{prefix}.weight_zero_point" in tensors
    if zeros and form is not INT4:
        raise WeightsError(f"{prefix} has a zero point (weight_zero_point); {form.name} is read without")
    _check_shape(codes, (outer, inner * form.bits // (32 if codes.dtype == "I32" else 8)), form.name)
    scale = _header(tensors, f"{prefix}.weight_scale", codes)
    if form is INT4:
        form = int4_of(inner // scale.shape[-1] if scale.shape and scale.shape[-1] else 0, scale, zeros=zeros)
    form.check(prefix, inner)
    if zeros:
        zero = tensors[f"{prefix}.weight_zero_point"]
        _check_words(zero, shapes_of("", form, outer, inner)["zero"], form)
    return _with_scale(form, scale, outer, inner)


def _identify_words(tensors: Mapping[str, Stored], matrix: Matrix, style: str, *, zeros: bool) -> Format:
    """The format of a matrix that AWQ or GPTQ stored."""
    prefix, (outer, inner) = matrix.prefix, matrix.shape
    codes = tensors[f"{prefix}.qweight"]
    if not style:
        raise WeightsError(
            f"{codes.file}: {codes.name} is AWQ's or GPTQ's; quantization_config.quant_method is neither"
        )
    scale, zero = (_header(tensors, f"{prefix}.{name}", codes) for name in ("scales", "qzeros"))
    form = int4_of(inner // scale.shape[0] if scale.shape and scale.shape[0] else 0, scale, zeros=zeros)
    form.check(prefix, inner)
    shapes = shapes_of(style, form, outer, inner)
    _check_words(codes, shapes["codes"], form)
    _check_words(zero, shapes["zero"], form)
    if f"{prefix}.g_idx" in tensors:
        _check_words(tensors[f"{prefix}.g_idx"], shapes["order"], form)
    _check_shape(scale, shapes["scale"], form.name)
    return _with_type(form, scale)


def _check_words(stored: Stored, wanted: tuple[int, ...], form: Format) -> None:
    _check_shape(stored, wanted, form.name)
    if stored.dtype != "I32":
        raise WeightsError(f"{stored.file}: {stored.name} is stored as {stored.dtype}; {form.name} has words of I32")


def _with_scale(form: Format, scale: Stored, outer: int, inner: int) -> Format:
    """The format with the number type of its stored scales."""
    groups = inner // form.group if form.group else 1
    one_for_all = not form.group and scale.shape in ((), (1,))
    if not one_for_all and scale.shape not in ((outer, groups), *([(outer,)] if groups == 1 else [])):
        raise WeightsError(
            f"{scale.file}: {scale.name} has shape {list(scale.shape)}; {form.name} makes it {[outer, groups]}"
        )
    return _with_type(form, scale)


def _with_type(form: Format, scale: Stored) -> Format:
    types = {"F8_E4M3": torch.float8_e4m3fn} if form is NVFP4 else FLOATS
    if scale.dtype not in types:
        raise WeightsError(
            f"{scale.file}: {scale.name} is stored as {scale.dtype}; {form.name} has scales of {', '.join(types)}"
        )
    return replace(form, scale_dtype=types[scale.dtype])


def _check_shape(stored: Stored, wanted: tuple[int, ...], how: str = "") -> None:
    if stored.shape != wanted:
        said = f"{list(wanted)} ({how})" if how else list(wanted)
        raise WeightsError(f"{stored.file}: {stored.name} has shape {list(stored.shape)}; config.json makes it {said}")


def _header(tensors: Mapping[str, Stored], name: str, beside: Stored) -> Stored:
    if name not in tensors:
        raise WeightsError(f"{beside.file}: {beside.name} has no {name.rsplit('.', 1)[1]} beside it; fetch it again")
    return tensors[name]


def _pieces(tensors: Mapping[str, Stored], matrix: Matrix, form: Format | None, style: str) -> Iterator[StoredPiece]:
    prefix = matrix.prefix
    if form is None:
        yield StoredPiece(f"{prefix}.weight", matrix, "plain", None)
        return
    if f"{prefix}.qweight" in tensors:
        names = {"codes": "qweight", "scale": "scales"} | ({"zero": "qzeros"} if form.zeros else {})
        yield from (StoredPiece(f"{prefix}.{name}", matrix, kind, form, style) for kind, name in names.items())
        return
    packed = f"{prefix}.weight_packed" in tensors
    codes = f"{prefix}.{'weight_packed' if packed else 'weight'}"
    yield StoredPiece(codes, matrix, "codes", form)
    yield StoredPiece(f"{prefix}.weight_scale", matrix, "scale", form)
    if form.zeros:
        yield StoredPiece(f"{prefix}.weight_zero_point", matrix, "zero", form)
    if form.name == "nvfp4":
        top = _header(tensors, f"{prefix}.{'weight_global_scale' if packed else 'weight_scale_2'}", tensors[codes])
        if top.shape not in ((), (1,)) or top.dtype != "F32":
            raise WeightsError(f"{top.file}: {top.name} is {top.dtype} {list(top.shape)}; it must be one F32 number")
        yield StoredPiece(top.name, matrix, "top", form)


def _trivial(tensors: Mapping[str, Stored], matrix: Matrix, form: Format | None, style: str) -> Iterator[StoredPiece]:
    """Orders of inputs, and zero points of a matrix that is said to have none."""
    for name in ("weight_g_idx", "g_idx"):
        if f"{matrix.prefix}.{name}" in tensors:
            yield StoredPiece(f"{matrix.prefix}.{name}", matrix, "order", form, style)
    if f"{matrix.prefix}.qzeros" in tensors and form is not None and not form.zeros:
        yield StoredPiece(f"{matrix.prefix}.qzeros", matrix, "zero", form, style)

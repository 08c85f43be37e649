"""4-bit integers as others store them: eight codes a word of 32 bits, and a zero point for each scale.

For a linear layer `p` of `outer` rows of `inner` numbers, a weight is (code - zero) * scale:

                        codes                             scales                           zero points
    compressed-tensors  p.weight_packed [outer, inner/8]  p.weight_scale [outer, groups]   p.weight_zero_point [outer/8, groups]
    awq                 p.qweight [inner, outer/8]        p.scales [groups, outer]         p.qzeros [groups, outer/8]
    gptq, gptq_v2       p.qweight [inner/8, outer]        p.scales [groups, outer]         p.qzeros [groups, outer/8]

The first code of a word is in its lowest bits; AWQ has an order of its own. GPTQ stores zero points less one, gptq_v2 as
they are. GPTQ has p.g_idx [inner], each input's group, which must be in order: `g_idx // group`.
"""  # noqa: E501 - a table

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from redraft.errors import WeightsError
from redraft.model.packed import INT4, Format, two_a_byte
from redraft.shapes import Tensor
from redraft.weights.source import Stored

GROUPS = (32, 64, 128)
_VERSIONS = {"awq": ("gemm",), "gptq": ("gptq", "gptq_v2")}
_PLACES = (0, 4, 1, 5, 2, 6, 3, 7)
"""Where in a word of AWQ the codes of eight columns are."""


def style_of(settings: Mapping[str, Any]) -> str:
    """By a config's quantization_config: awq, gptq or gptq_v2, and empty for other methods. Raises WeightsError for
    another number of bits or another version."""
    method = settings.get("quant_method")
    if method not in _VERSIONS:
        return ""
    if settings.get("bits", 4) != 4:
        raise WeightsError(f"quantization_config.bits is {settings['bits']!r}; {method} is read with 4 bits")
    named = (settings.get(key) for key in ("checkpoint_format", "format", "version"))
    version = str(next((name for name in named if name), _VERSIONS[method][0])).lower()
    if version not in _VERSIONS[method]:
        raise WeightsError(
            f"quantization_config says {method} in format {version!r}; supported: {', '.join(_VERSIONS[method])}"
        )
    return "awq" if method == "awq" else version


def int4_of(group: int, scale: Stored, *, zeros: bool) -> Format:
    """int4 in groups of any supported size. `scale` is named in the WeightsError for another size."""
    if group not in GROUPS:
        raise WeightsError(f"{scale.file}: {scale.name} means groups of {group}; supported: 32, 64, 128")
    name = ("int4" if group == INT4.group else f"int4-g{group}") + "-asym" * zeros
    return replace(INT4, group=group, name=name, zeros=zeros)


def shapes_of(style: str, form: Format, outer: int, inner: int) -> dict[str, tuple[int, ...]]:
    """The shapes of a stored matrix in words, by the kind of its tensors."""
    groups, eighth = inner // form.group, -(-outer // 8)
    if not style:
        return {"codes": (outer, inner // 8), "scale": (outer, groups), "zero": (eighth, groups)}
    codes = (inner, eighth) if style == "awq" else (inner // 8, outer)
    return {"codes": codes, "scale": (groups, outer), "zero": (groups, eighth), "order": (inner,)}


def in_rows(style: str, kind: str, tensor: Tensor, outer: int) -> Tensor:
    """A stored tensor in the layout of `Packed`."""
    if kind == "scale":
        return tensor.T if style else tensor
    if kind == "codes" and style != "awq":
        return (tensor.T.contiguous() if style else tensor).view(torch.uint8)
    codes = _nibbles(tensor)
    if not style:
        return codes.transpose(1, 2).flatten(0, 1)[:outer]
    if style == "awq":
        codes = codes[..., list(_PLACES)]
    codes = codes.flatten(1).T[:outer]
    if kind == "codes":
        return two_a_byte(codes)
    return codes + 1 & 15 if style == "gptq" else codes


def check_trivial(style: str, kind: str, stored: Stored, tensor: Tensor, group: int) -> None:
    """Raise WeightsError unless an order of inputs is the stored one, or zero points said to be symmetric are."""
    if kind == "order" and not torch.equal(tensor.long(), torch.arange(len(tensor)) // group):
        raise WeightsError(
            f"{stored.file}: {stored.name} has an order of inputs (desc_act, act-order); only the stored order is"
            " supported, so take a checkpoint without it"
        )
    if kind == "zero" and not (in_rows(style, kind, tensor, 8 * tensor.shape[1]) == 8).all():
        raise WeightsError(
            f"{stored.file}: {stored.name} has other zero points than 8; quantization_config.sym says there are none"
        )


def _nibbles(words: Tensor) -> Tensor:
    """The eight codes of each word, lowest bits first, as a last axis."""
    pairs = words.contiguous().view(torch.uint8)
    return torch.stack([pairs & 15, pairs >> 4], -1).view(*words.shape, 8)

"""Weights that somebody forged: each is one clear error, before anything of the size that it claims is allocated."""

from __future__ import annotations

import json
import os
import re
import struct
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from tests.helpers import tiny_config, tiny_model

from redraft.errors import WeightsError
from redraft.measure.process_memory import peak_here_mib
from redraft.weights.adapter import merge_adapter
from redraft.weights.gguf import open_source

MOST_MIB = 150
Place = Mapping[str, Any]


def place(shape: list[Any], start: Any, end: Any, dtype: str = "F32") -> Place:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def file_of(header: bytes | Mapping[str, Place], size: int = 64, length: int | None = None) -> bytes:
    """A safetensors file: the length of its header, the header, `size` bytes of numbers."""
    said = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(said) if length is None else length) + said + bytes(size)


def twice(name: str, *places: Place) -> bytes:
    """A header that has a name more than once, which no dict has."""
    return b"{" + b",".join(json.dumps({name: one}).encode()[1:-1] for one in places) + b"}"


FORGED: dict[str, bytes] = {
    "empty": b"",
    "no header": struct.pack("<Q", 0),
    "a header beyond the file": file_of({}, length=2**40),
    "a header of 2^63 bytes": file_of({}, length=2**63),
    "a header of 2^64-1 bytes": file_of({}, length=2**64 - 1),
    "no JSON": file_of(b"\xff\xfe", 0),
    "a list": file_of(b"[]", 0),
    "deep JSON": file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 0),
    "overlapping": file_of({"a": place([8], 0, 32), "b": place([8], 16, 48)}, 48),
    "one upon the other": file_of({"a": place([8], 0, 32), "b": place([8], 0, 32)}, 32),
    "a gap": file_of({"a": place([8], 0, 32), "b": place([4], 48, 64)}),
    "beyond the end": file_of({"a": place([8], 0, 32), "b": place([2**32], 32, 32 + 2**34)}),
    "bytes that no tensor has": file_of({"a": place([8], 0, 32)}),
    "end before start": file_of({"a": place([8], 32, 0)}),
    "negative offsets": file_of({"a": place([8], -32, 0)}),
    "offsets of 2^64": file_of({"a": place([8], 2**64 - 32, 2**64)}),
    "negative shape": file_of({"a": place([-4, -4], 0, 64)}),
    "a fraction": file_of({"a": place([1.5], 0, 64)}),
    "a product that overflows": file_of({"a": place([2**33, 2**31], 0, 0)}, 0),
    "a product that comes round": file_of({"a": place([2**62 + 4, 4], 0, 64)}),
    "a shape larger than its bytes": file_of({"a": place([2**40], 0, 64)}),
    "no such dtype": file_of({"a": place([16], 0, 64, "F33")}),
    "truncated": file_of({"a": place([16], 0, 64)}, 40),
    "two of one name": file_of(twice("a", place([8], 0, 32), place([8], 32, 64))),
    "two of one name and place": file_of(twice("a", place([16], 0, 64), place([4, 4], 0, 64))),
    "two shapes": file_of(b'{"a":{"dtype":"F32","shape":[16],"shape":[4,4],"data_offsets":[0,64]}}'),
}


class Tensors:
    """Bytes that a GGUF file is made of."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []

    def pack(self, form: str, *values: Any) -> Tensors:
        self.parts.append(struct.pack("<" + form, *values))
        return self

    def text(self, said: str, length: int | None = None) -> Tensors:
        return self.pack("Q", len(said) if length is None else length).raw(said.encode())

    def raw(self, said: bytes) -> Tensors:
        self.parts.append(said)
        return self

    def tensor(self, name: str, shape: list[int], offset: int, kind: int = 0) -> Tensors:
        return self.text(name).pack("I", len(shape)).pack(f"{len(shape)}Q", *shape).pack("IQ", kind, offset)

    def file(self, size: int = 64) -> bytes:
        found = b"".join(self.parts)
        return found + bytes(-len(found) % 32 + size)


def gguf(tensors: int, keys: int = 1) -> Tensors:
    """The head of a file of that many tensors and keys, the first of which names the model."""
    head = Tensors().raw(b"GGUF").pack("IQQ", 3, tensors, keys)
    return head.text("general.architecture").pack("I", 8).text("diffusion-gemma")


FORGED_GGUF: dict[str, bytes] = {
    "empty": b"",
    "another magic": b"GGUX" + bytes(60),
    "2^63 tensors": gguf(2**63).file(),
    "2^63 keys": gguf(0, 2**63).file(),
    "a text of 2^60 bytes": gguf(0, 2).text("a").pack("I", 8).text("b", 2**60).file(),
    "a list of 2^60 numbers": gguf(0, 2).text("a").pack("IIQ", 9, 4, 2**60).file(),
    "a list of 2^60 texts": gguf(0, 2).text("a").pack("IIQ", 9, 8, 2**60).file(),
    "lists in lists": gguf(0, 2).text("a").pack("I", 9).raw(struct.pack("<IQ", 9, 1) * 5000).file(),
    "no such kind of key": gguf(0, 2).text("a").pack("I", 99).file(),
    "2^31 axes": gguf(1).text("token_embd.weight").pack("I", 2**31).file(),
    "beyond the end": gguf(1).tensor("token_embd.weight", [16], 2**20).file(),
    "an offset of 2^63": gguf(1).tensor("token_embd.weight", [16], 2**63).file(),
    "larger than the file": gguf(1).tensor("token_embd.weight", [2**40], 0).file(),
    "a product that overflows": gguf(1).tensor("token_embd.weight", [2**33, 2**31], 0).file(),
    "a product that comes round": gguf(1).tensor("token_embd.weight", [2**62 + 4, 4], 0).file(),
    "no such kind of tensor": gguf(1).tensor("token_embd.weight", [16], 0, 999).file(),
    "more texts than any vocabulary": gguf(0, 2).text("a").pack("IIQ", 9, 8, 2**23).file(2**26),
    "a million texts, then none": gguf(0, 2).text("a").pack("IIQ", 9, 8, 2**20).file(2**20),
    "rows that are no blocks": gguf(1).tensor("token_embd.weight", [16, 2], 0, 2).file(),
    "an alignment of 3": gguf(0, 2).text("general.alignment").pack("II", 4, 3).file(),
    "two of one name": gguf(2).tensor("output_norm.weight", [8], 0).tensor("output_norm.weight", [8], 32).file(),
    "overlapping": gguf(2).tensor("token_embd.weight", [16], 0).tensor("output_norm.weight", [16], 32).file(96),
}


def refused(folder: Path, files: Mapping[str, bytes], name: str, read: Callable[[Path], object]) -> None:
    """Each is a clear error, and all of them together take little memory."""
    before = peak_here_mib()
    for said, content in files.items():
        (folder / name).write_bytes(content)
        with pytest.raises(WeightsError, match=re.escape(str(folder))):
            pytest.fail(f"{said}: {read(folder)}")
    assert peak_here_mib() - before < MOST_MIB


def test_forged_safetensors_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, FORGED, "model.safetensors", open_source)


def test_a_file_that_may_not_be_read_is_said_to_be_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """safetensors says that there is no such file. Root may read anything, so the system's answer is put in place."""
    (tmp_path / "model.safetensors").write_bytes(b"")
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.R_OK)
    with pytest.raises(WeightsError, match=r"model.safetensors cannot be read \(permission denied\)"):
        open_source(tmp_path)


@pytest.mark.parametrize("name", ["model.safetensors", "model.gguf", "adapter_model.safetensors"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    os.mkfifo(tmp_path / name)
    with pytest.raises(WeightsError, match=r"it is no regular file|has neither"):
        merge_adapter(tiny_model(tiny_config()), tmp_path) if "adapter" in name else open_source(tmp_path)


def test_a_vocabulary_of_a_gguf_file_is_walked_over_at_once(tmp_path: Path) -> None:
    """The package's reader took half a minute for a million texts."""
    head = gguf(1, 2).text("tokenizer.ggml.merges").pack("IIQ", 9, 8, 2**20)
    head.raw(struct.pack("<Q5s", 5, b"a bcd") * 2**20).tensor("output_norm.weight", [8], 0)
    (tmp_path / "model.gguf").write_bytes(head.file())
    began = time.process_time()
    assert open_source(tmp_path).tensors["model.decoder.norm.weight"].shape == (8,)
    assert time.process_time() - began < 10


def test_a_name_that_two_tensors_have_is_in_the_error(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(twice("lm.head", place([16], 0, 64), place([4, 4], 0, 64))))
    with pytest.raises(WeightsError, match=r"model.safetensors is damaged \(it has lm.head twice\)"):
        open_source(tmp_path)
    path.rename(tmp_path / "model-00001-of-00001.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {"a": "x.safetensors", "a": "y"}}')
    with pytest.raises(WeightsError, match="it has a twice"):
        open_source(tmp_path)


def test_forged_gguf_files_are_refused(tmp_path: Path) -> None:
    """A list of 2^60 numbers was read one by one, and tensors could share bytes."""
    refused(tmp_path, FORGED_GGUF, "model.gguf", open_source)


def test_forged_adapters_are_refused(tmp_path: Path) -> None:
    model = tiny_model(tiny_config())
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2}))
    refused(tmp_path, FORGED, "adapter_model.safetensors", lambda folder: merge_adapter(model, folder))


@pytest.mark.parametrize(
    ("rank", "change", "said"),
    [
        (2, lambda low: low, "has rank 1; adapter_config.json has r 2"),
        (1, lambda low: low * float("inf"), "holds NaN or infinity"),
        (1, lambda low: low.flatten(), "it takes two matrices"),
        (1, lambda low: low[0, 0], "it takes two matrices"),
        (1, lambda low: low[:0], "is adapted by an empty matrix"),
    ],
)
def test_an_adapter_of_forged_matrices_changes_nothing(
    rank: int, change: Callable[[torch.Tensor], torch.Tensor], said: str, tmp_path: Path
) -> None:
    model = tiny_model(tiny_config())
    name, target = "model.decoder.layers.0.self_attn.o_proj", "layers.0.attention.out.weight"
    size = next(value.shape for key, value in model.state_dict().items() if key == target)
    pair = change(torch.ones(1, size[1])), change(torch.ones(size[0], 1))
    stored = {
        f"base_model.model.{at}.lora_{which}.weight": low.clone()
        for at in (name, name.replace("model.decoder", "model.encoder.language_model"))
        for which, low in zip("AB", pair, strict=True)
    }
    save_file(stored, tmp_path / "adapter_model.safetensors")
    (tmp_path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 2}))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    with pytest.raises(WeightsError, match=said):
        merge_adapter(model, tmp_path)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())

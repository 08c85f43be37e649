"""A CUDA device where there is none: tensors that say they are on it, with numbers that are true.

Every tensor that is made "on cuda" is a wrapper around one of the CPU, and every operation passes here. So code for a
GPU runs with real results, and what a GPU would refuse or wait for is noticed:

    Mixed          an operation on tensors of both devices
    waits          what the host waits for: reads of a number, copies to the host, sizes that depend on numbers
    fetched        numbers that were copied to the host
    uploads        copies to the device; those without non_blocking wait

Kernels of Triton run under its interpreter on the numbers inside. A graph is recorded operation by operation and
replayed into the same memory; while it is recorded, the host may wait for nothing.
"""

from __future__ import annotations

import operator
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from redraft.model.gemma import Layer
from redraft.model.rows import Rows, by_mode

CUDA = torch.device("cuda:0")
_aten = torch.ops.aten
_READS = {_aten._local_scalar_dense.default, _aten.equal.default}
_SIZED = {
    _aten.nonzero.default,
    _aten.masked_select.default,
    _aten._unique2.default,
    _aten.unique_dim.default,
    _aten.bincount.default,
    _aten.repeat_interleave.Tensor,
    _aten.where.default,
}
_INDEXED = {_aten.index.Tensor, _aten.index_put.default, _aten.index_put_.default, _aten._index_put_impl_.default}
_INDEXED |= {operator.getitem, operator.setitem}
_COPIES = {_aten._to_copy.default, _aten.copy_.default}


class Mixed(AssertionError):
    """An operation was given tensors of both devices."""


class Held(torch.Tensor):
    """A tensor that says it is on CUDA; `held` has the numbers."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Held:
        # As torch's own fake tensors are made: to C++ it is one of "meta", so that no driver is asked for a device.
        with torch.inference_mode(False):
            blank = torch.empty_strided(held.size(), held.stride(), dtype=held.dtype, device="meta")
            made: Held = torch.Tensor._make_subclass(cls, blank, dispatch_device=True, device_for_backend_keys=CUDA)
        made.held = held
        return made

    # torch's own indexing and conversions ask for a guard of the device, which a build without CUDA does not have.
    def __getitem__(self, key: Any) -> Any:
        return _entered().run(operator.getitem, (self, key), {})

    def __setitem__(self, key: Any, value: Any) -> None:
        _entered().run(operator.setitem, (self, key, value), {})

    def __invert__(self) -> Any:
        return torch.bitwise_not(self)

    def copy_(self, source: torch.Tensor, non_blocking: bool = False) -> Any:
        return _entered().run(_aten.copy_.default, (self, source), {"non_blocking": non_blocking})

    def nonzero(self) -> Any:  # type: ignore[override]  # as tuples, it is not asked for
        return _entered().run(_aten.nonzero.default, (self,), {})

    def contiguous(self, **_: Any) -> Any:
        return self if self.is_contiguous() else self.clone(memory_format=torch.contiguous_format)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def __float__(self) -> float:
        return float(self.item())

    def __int__(self) -> int:
        return int(self.item())

    def __index__(self) -> int:
        return int(self.item())

    def tolist(self) -> Any:
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a CUDA tensor to numpy; copy it to the host first")

    def __reduce_ex__(self, protocol: Any) -> Any:
        return self.held.__reduce_ex__(protocol)

    def __repr__(self, **_: Any) -> str:
        return f"Held({self.held!r})"

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return CUDA
        raise Mixed(f"{func} on a tensor of the pretended device, outside of `pretend`")


@dataclass
class Seen:
    """What was noticed. Each wait says its operation and the line of ours that asked for it."""

    waits: list[str] = field(default_factory=list)
    fetched: int = 0
    uploads: int = 0
    kernels: int = 0
    operations: int = 0

    def clear(self) -> None:
        self.waits.clear()
        self.fetched = self.uploads = self.kernels = self.operations = 0


class Device(TorchDispatchMode):
    """Everything on the pretended device passes here while it is entered."""

    # Of all modes this one keeps torch from asking a driver for the device.
    _mode_key = torch._C._TorchDispatchModeKey.FAKE  # type: ignore[attr-defined]  # torch's stubs leave it out

    def __init__(self) -> None:
        super().__init__()
        self.seen = Seen()
        self.tape: list[Callable[[], None]] | None = None

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.prim.device.default:
            return CUDA
        kwargs = dict(kwargs or {})
        if isinstance(func, torch._ops.OpOverload):
            with self:  # what torch makes of other operations, in inference mode comes here whole
                found = func.decompose(*args, **kwargs)
            if found is not NotImplemented:
                return found
        return self.run(func, args, kwargs)

    def run(self, func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        """One operation, on the numbers inside."""
        flat = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, torch.Tensor)]
        ours = [one for one in flat if isinstance(one, Held)]
        kwargs.pop("pin_memory", None)  # which a machine without a GPU refuses
        target = kwargs.get("device")
        there = target is not None and torch.device(target).type == "cuda"
        if func is _aten._pin_memory.default:
            return args[0].clone()
        if not ours and not there:
            return func(*args, **kwargs)
        self._look(func, args, flat, ours, kwargs, there=there)
        if there:
            kwargs["device"] = torch.device("cpu")
        bare = tree_map(_inside, (args, kwargs))
        found = func(*bare[0], **bare[1])
        self.seen.operations += 1
        self._record(func, bare, found)
        back = {id(one.held): one for one in ours}
        to_host = func is _aten._to_copy.default and target is not None and not there
        if to_host:
            return found.clone() if found is bare[0][0] else found
        return tree_map(lambda one: _outside(one, back), found)

    def wait(self, what: object) -> None:
        """The host waits for the device."""
        lines = [line for line in traceback.extract_stack() if "/redraft/" in line.filename]
        where = f"{lines[-1].filename.rsplit('/', 1)[-1]}:{lines[-1].lineno} {lines[-1].line}" if lines else ""
        assert self.tape is None, f"{what} while a graph is recorded: {where}"
        self.seen.waits.append(f"{what} {where}")

    def _look(
        self, func: Any, args: Any, flat: list[Any], ours: list[Held], kwargs: dict[str, Any], *, there: bool
    ) -> None:
        if func in _COPIES:
            self._look_at_copy(func, flat, kwargs, there=there)
            return
        others = [one for one in flat if not isinstance(one, Held) and one.ndim]
        if ours and others and func in _INDEXED:
            self.wait(f"{func} by an index of the host")
        elif ours and others:
            raise Mixed(f"{func} on {[(tuple(one.shape), str(one.device)) for one in flat]}")
        keys = tree_flatten(args[1])[0] if func in _INDEXED else []
        masks = [one for one in keys if isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8)]
        if func in _READS | _SIZED or masks:
            self.wait(func)

    def _look_at_copy(self, func: Any, flat: list[Any], kwargs: dict[str, Any], *, there: bool) -> None:
        if func is _aten.copy_.default:
            target, source = (isinstance(one, Held) for one in flat[:2])
        else:
            source = isinstance(flat[0], Held)
            target = there or (source and kwargs.get("device") is None)
        if source and not target:
            self.wait("a copy to the host")
            self.seen.fetched += flat[-1].numel()
        if target and not source:
            self.seen.uploads += 1
            if not kwargs.get("non_blocking") and flat[-1].ndim:
                self.wait("a copy to the device that waits")

    def _record(self, func: Any, bare: Any, found: Any) -> None:
        if self.tape is None:
            return
        outs = [one for one in tree_flatten(found)[0] if isinstance(one, torch.Tensor)]

        def again() -> None:
            news = [one for one in tree_flatten(func(*bare[0], **bare[1]))[0] if isinstance(one, torch.Tensor)]
            for out, new in zip(outs, news, strict=True):
                if out.data_ptr() != new.data_ptr():
                    out.copy_(new)

        self.tape.append(again)


def _entered() -> Device:
    found = torch._C._get_dispatch_mode(Device._mode_key)  # type: ignore[attr-defined]  # torch's stubs leave it out
    assert isinstance(found, Device), "a tensor of the pretended device is used outside of `pretend`"
    return found


def _inside(one: Any) -> Any:
    return one.held if isinstance(one, Held) else one


def _outside(one: Any, back: dict[int, Held]) -> Any:
    if not isinstance(one, torch.Tensor) or isinstance(one, Held):
        return one
    before = back.get(id(one))
    return Held(one) if before is None else before


class Graph:
    """Stands in for torch.cuda.CUDAGraph."""

    def __init__(self) -> None:
        self.tape: list[Callable[[], None]] = []

    def replay(self) -> None:
        """Everything recorded, once more."""
        assert self.tape, "nothing was recorded"
        for again in self.tape:
            again()


@dataclass
class Launch:
    """Stands in for a kernel of Triton: every tensor must be on the device, and the numbers go to the interpreter."""

    kernel: Any
    device: Device

    def __getitem__(self, grid: Any) -> Callable[..., None]:
        def launch(*args: Any, **constants: Any) -> None:
            tensors = [one for one in args if isinstance(one, torch.Tensor)]
            if not any(isinstance(one, Held) for one in tensors):
                self.kernel[grid](*args, **constants)  # a model of the host
                return
            for one in tensors:
                if not isinstance(one, Held):
                    raise Mixed(f"a kernel was given a tensor of the host: {tuple(one.shape)}")
            bare = [_inside(one) for one in args]

            def run() -> None:
                self.kernel[grid](*bare, **constants)

            run()
            self.device.seen.kernels += 1
            if self.device.tape is not None:
                self.device.tape.append(run)

        return launch


class _Event(torch.cuda.Event):
    def __new__(cls) -> _Event:
        return object.__new__(cls)

    def __init__(self) -> None:
        """torch's own asks for a driver."""


class _Stream:
    """Nothing runs beside anything here."""

    def wait_stream(self, other: object) -> None:
        """What is on it has ended."""

    def wait_event(self, event: object) -> None:
        """It has come."""

    def record_event(self) -> _Event:
        """One that has come."""
        return _Event()


@contextmanager
def pretend(patch: pytest.MonkeyPatch) -> Iterator[Device]:
    """A machine with a CUDA device, for as long as this is entered."""
    device = Device()

    @contextmanager
    def recorded(graph: Graph, **_: Any) -> Iterator[None]:
        device.tape = graph.tape
        try:
            yield
        finally:
            device.tape = None

    run = threading.Thread.run

    def run_there(thread: threading.Thread) -> None:
        with device:  # each thread enters by itself
            run(thread)

    cuda = torch.cuda
    patch.setattr(threading.Thread, "run", run_there)
    patch.setattr(cuda, "device", lambda _: nullcontext())
    patch.setattr(cuda, "stream", lambda _: nullcontext())
    patch.setattr(cuda, "Stream", lambda *_: _Stream())
    patch.setattr(cuda, "current_stream", lambda *_: _Stream())
    patch.setattr(cuda, "CUDAGraph", Graph)
    patch.setattr(cuda, "graph", recorded)
    patch.setattr(cuda, "graph_pool_handle", lambda: (0, 0))
    patch.setattr(cuda, "memory_reserved", lambda *_: 0)
    patch.setattr(cuda, "empty_cache", lambda: None)
    patch.setattr(cuda, "synchronize", lambda *_: None)
    patch.setattr(cuda, "is_available", lambda: True)
    patch.setattr(cuda, "device_count", lambda: 1)
    patch.setattr(cuda, "is_bf16_supported", lambda **_: True)
    patch.setattr(cuda, "get_device_capability", lambda *_: (9, 0))
    patch.setattr(cuda, "get_device_name", lambda *_: "pretended")
    patch.setattr(cuda, "mem_get_info", lambda *_: (80 * 10**9, 80 * 10**9))
    # A parameter that moves is made anew: torch would put the numbers of the one into the other.
    patch.setattr(torch.__future__, "get_overwrite_module_params_on_conversion", lambda: True)
    _pretend_kernels(patch, device)
    before = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with device:
            yield device
    finally:
        torch._C._set_only_lift_cpu_tensors(before)


def _pretend_kernels(patch: pytest.MonkeyPatch, device: Device) -> None:
    from redraft.model.gpu import attention, classes, dense, experts, head, layer, messages, norm, rounding
    from redraft.tune import fused_attention, fused_kernels

    for module, names in (
        (attention, ["_attend"]),
        (dense, ["_dense"]),
        (experts, ["_place", "_gate_up", "_down"]),
        (rounding, ["_round"]),
        (head, ["_row"]),
        (layer, ["_heads", "_after_attention", "_gelu", "_route", "_after_ffw"]),
        (norm, ["_norm"]),
        (messages, ["_walk", "_back"]),
        (classes, ["_tile", "_shift"]),
        (fused_attention, [name + back for name in ("heads", "gather", "softmax") for back in ("", "_back")]),
        (
            fused_kernels,
            [name + back for name in ("norm", "after", "route", "gated", "joined") for back in ("", "_back")],
        ),
    ):
        for name in names:
            patch.setattr(module, name, Launch(getattr(module, name), device))


def layer_of_torch(layer: Layer, x: torch.Tensor, rows: Rows) -> torch.Tensor:
    """A layer operation by operation which a graph can be recorded with: as the kernel does, it reads from the tables
    where rows go and what they see."""
    index, first, found = layer.attention.index, 0, []
    tables, group = rows.tables(index), layer.attention.heads // layer.attention.kv_heads
    q, k, v = layer.before(x, *rows.rotation(layer.attention.layer))
    for i, span in enumerate(rows.spans):
        own, first = slice(first, first + span.rows), first + span.rows
        held, origin = span.prefix.layers[index], tables.buffers[index, i, 3]
        for buffer, part in ((held.keys, k), (held.values, v)):
            buffer.index_copy_(1, tables.rows[own, 1] - origin, part[own].transpose(0, 1))
        key, seen = torch.arange(held.keys.shape[1], device=x.device) + origin, tables.seen[tables.kinds[index], own]
        visible = (key >= seen[:, :1]) & (key < seen[:, 1:])
        # What nobody has written may be NaN.
        keys, values = (
            torch.where(visible.any(0)[:, None], part, 0.0).repeat_interleave(group, 0)
            for part in (held.keys, held.values)
        )
        scores = (q[own].transpose(0, 1) @ keys.transpose(1, 2)).masked_fill(~visible, -torch.inf)
        found.append((torch.softmax(scores, -1) @ values).transpose(0, 1))
    return layer.after(x, torch.cat(found), by_mode(rows, layer.encode_scalar, layer.denoise_scalar))

"""Processes that share a model's experts: the first runs the model, the others multiply for it.

    first     rows, weights, choices ──► all        its own experts ─┐
    others                         each its own experts ─────────────┴─► the sum, at the first

There is one exchange a layer. The others hold experts and nothing else, no cache, no canvas, no request, and keep
nothing from one exchange to the next, so there is nothing in which they could come to differ from the first: clocks,
listeners and a server are its affair alone. torch's DTensor is for a program that all processes run; here one runs it.

A process that is gone is noticed by its closed sockets, one that is silent after PATIENCE. A thread of the first makes
the exchanges, each to its end whatever interrupts who waits for it, and sends a pulse when there is nothing else to do.
"""

from __future__ import annotations

import atexit
import os
import queue
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Any, NoReturn

import torch
from torch import distributed

from redraft.errors import RedraftError, RequestError, RunError
from redraft.model.gemma import DiffusionGemma, Layer
from redraft.model.moe import AnyExperts, ExpertsForm
from redraft.shapes import Float, Tensor

PATIENCE, LOADING = timedelta(minutes=5), timedelta(hours=2)
PULSE_SEC = 5.0
_PULSE, _END = -1, -2  # told in the place of a layer's number


class Group:
    """This process among those that torchrun has started to share experts; the one of `rank` 0 is the first.

    Once another has been lost, which `broken` tells, every forward raises the `failure`, and so does `close`.
    """

    def __init__(self) -> None:
        """Meet the others. Raises RequestError where there can be none, RunError if they do not come."""
        if "WORLD_SIZE" not in os.environ:
            raise RequestError(
                "experts are to be shared and this process was not started by torchrun; run:"
                " torchrun --nproc-per-node 2 -m redraft generate … --parallel experts"
            )
        if distributed.is_initialized():
            raise RequestError("these processes share the experts of a model already; start others for another one")
        try:
            distributed.init_process_group("gloo", timeout=PATIENCE)
            self._loading: Any = distributed.new_group(backend="gloo", timeout=LOADING)
        except (RuntimeError, ValueError) as error:
            raise RunError(f"the processes that are to share experts did not meet ({_brief(error)})") from error
        self.rank, self.ranks = distributed.get_rank(), distributed.get_world_size()
        self.device, self.closed, self.broken = torch.device("cpu"), threading.Event(), threading.Event()
        self._over_nccl: Any = None  # where rows go from GPU to GPU; words always go over gloo
        self._jobs: queue.SimpleQueue[tuple[Callable[[], Any], Future[Any]]] = queue.SimpleQueue()
        self.failure: RunError | None = None
        self._leads = False

    def use(self, device: torch.device) -> torch.device:
        """Take a device, of GPUs each process its own. Returns it."""
        if device.type == "cuda":
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", self.rank)))
            torch.cuda.set_device(device)
            self._over_nccl = distributed.new_group(backend="nccl")
        self.device = device
        return device

    def settle(self, model: DiffusionGemma, share: range) -> None:
        """Let a loaded model run with the experts of all; where this is not the first process, serve until that ends.

        Raises SystemExit then, and RunError if another is lost.
        """
        with self._together():
            distributed.barrier(self._loading)
        forms = [SharedForm(layer.kernels.experts, layer.experts, share, self, i) for i, layer in _layers(model)]
        if self.rank:
            self._serve(forms, model.config.hidden_size + 2 * model.config.top_k_experts, model.dtype)
        for i, layer in _layers(model):
            layer.kernels = replace(layer.kernels, experts=forms[i])
        self._leads = True
        threading.Thread(target=self._turn, name="redraft-group", daemon=True).start()
        atexit.register(self._leave)

    def sum(self, form: SharedForm, rows: Tensor, dtype: torch.dtype) -> Float[Tensor, "rows hidden"]:
        """What the experts of all processes make of some rows, float32."""
        found: Tensor = self._do(partial(self._exchange, form, rows, dtype))
        return found

    def close(self) -> None:
        """Let the others end. Raises RunError if one was lost."""
        if self._leads and not self.closed.is_set():
            self.closed.set()
            self._do(partial(self._tell, _END))

    def _do(self, work: Callable[[], Any]) -> Any:
        done: Future[Any] = Future()
        self._jobs.put((work, done))
        return done.result()

    @torch.inference_mode()
    def _turn(self) -> None:
        """Do what is to be done, one thing after another, for ever."""
        if self._over_nccl is not None:
            torch.cuda.set_device(self.device)
        while True:
            try:
                work, done = self._jobs.get(timeout=PULSE_SEC)
            except queue.Empty:
                work, done = partial(self._tell, _PULSE), Future()
            try:
                if self.failure is not None:
                    raise self.failure
                done.set_result(work())
            except Exception as error:  # whatever it is, who asked for the work is told
                done.set_exception(error)

    def _tell(self, number: int, rows: int = 0) -> None:
        with self._together():
            distributed.broadcast(torch.tensor([number, rows]), 0)
        if number == _END:
            self.failure = RunError("the processes that share the experts have ended; start them again")
            distributed.destroy_process_group()  # its threads, left to the interpreter's end, would abort it

    def _exchange(self, form: SharedForm, rows: Tensor, dtype: torch.dtype) -> Tensor:
        if self.rank == 0:
            self._tell(form.layer, len(rows))
        with self._together():
            distributed.broadcast(rows, 0, group=self._over_nccl)
        total = form.room(rows)
        try:
            form.add_share(total, rows, dtype)
        finally:  # the others send theirs, whatever becomes of this one
            with self._together():
                distributed.reduce(total, 0, group=self._over_nccl)
        return total

    @torch.inference_mode()
    def _serve(self, forms: list[SharedForm], width: int, dtype: torch.dtype) -> NoReturn:
        told = torch.zeros(2, dtype=torch.int64)
        while True:
            with self._together():
                distributed.broadcast(told, 0)
            number, rows = told.tolist()
            if number == _END:
                distributed.destroy_process_group()
                raise SystemExit(0)
            if number != _PULSE:
                self._exchange(forms[number], torch.empty(rows, width, device=self.device), dtype)

    @contextmanager
    def _together(self) -> Iterator[None]:
        """What goes wrong between processes, in words. It does not get better."""
        try:
            yield
        except RuntimeError as error:
            self.failure = RunError(
                f"{'the first' if self.rank else 'another'} of the {self.ranks} processes that share the experts is"
                f" gone, or was silent for too long; start them all again ({_brief(error)})"
            )
            self.broken.set()
            if self._over_nccl is None:  # which waits for who will not come
                distributed.destroy_process_group()
            raise self.failure from error

    def _leave(self) -> None:
        with suppress(RedraftError):
            self.close()


@dataclass(frozen=True)
class SharedForm:
    """A form of the experts that runs another one, in every process on its share of a layer's experts.

    Rows travel as one float32 matrix, which loses nothing of them: x, weights and the numbers of the chosen experts.
    """

    form: ExpertsForm
    own: AnyExperts
    share: range
    group: Group
    layer: int

    def __call__(self, experts: AnyExperts, x: Tensor, weights: Tensor, chosen: Tensor) -> Tensor:
        """The sum of each row's chosen experts, whoever holds them."""
        return self.group.sum(self, torch.cat([x.float(), weights, chosen.float()], dim=1), x.dtype).to(x.dtype)

    def room(self, rows: Tensor) -> Float[Tensor, "rows hidden"]:
        """A sum of nothing."""
        return rows.new_zeros(len(rows), self.own.down.shape[1])

    def add_share(self, total: Tensor, rows: Tensor, dtype: torch.dtype) -> None:
        """Add what this process's experts make of the rows that are sent to them."""
        hidden = total.shape[1]
        x, (weights, numbers) = rows[:, :hidden].to(dtype), rows[:, hidden:].chunk(2, dim=1)
        chosen = numbers.long()
        row, place = torch.where((chosen >= self.share.start) & (chosen < self.share.stop))
        if row.numel():
            one = chosen[row, place, None] - self.share.start
            total.index_add_(0, row, self.form(self.own, x[row], weights[row, place, None], one).float())


def _layers(model: DiffusionGemma) -> Iterator[tuple[int, Layer]]:
    return ((i, layer) for i, layer in enumerate(model.layers) if isinstance(layer, Layer))


def _brief(error: Exception) -> str:
    """What torch says, without the line of its source in front and its advice behind."""
    return re.sub(r"^\[\S+\] ", "", str(error)).partition(". ")[0].partition("\n")[0]

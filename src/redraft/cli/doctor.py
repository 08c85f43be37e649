"""`redraft doctor`: what is wrong with an installation, and what to do about it."""

from __future__ import annotations

import argparse
import os
import platform
import socket
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from timeit import repeat
from typing import Any, Literal

from redraft.cli.common import Commands, check_range, command, print_json
from redraft.cli.serve import PORT
from redraft.errors import RedraftError

EPILOG = """Every line is a check: what was found, and where something is wrong, what to do. The exit code is 1 if
anything keeps redraft from running. Nothing is changed and nothing is fetched.

examples:
  redraft doctor
  redraft doctor --model ./checkpoint --json"""

State = Literal["good", "slow", "wrong"]
ROWS, WIDTH, TIMES = 256, 1024, 5


@dataclass(frozen=True)
class Finding:
    """One check: "slow" costs time or a promise, "wrong" keeps it from working."""

    check: str
    state: State
    found: str
    remedy: str = ""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "doctor", "find what is wrong with an installation", run, epilog=EPILOG)
    parser.add_argument("--model", default="nano", help="a checkpoint that is to run (default: nano)")
    parser.add_argument("--port", type=int, default=PORT, help=f"where it is to serve (default: {PORT})")


def run(arguments: argparse.Namespace) -> int:
    """Check, and print what was found."""
    check_range("port", arguments.port, 0, 65535)
    found: list[Finding] = []
    for finding in _findings(arguments.model, arguments.port):
        found.append(finding)
        if not arguments.json:
            mark = {"good": "ok   ", "slow": "slow ", "wrong": "WRONG"}[finding.state]
            print(f"{mark} {finding.check}: {finding.found}")
            if finding.remedy:
                print(f"      {finding.remedy}")
    if arguments.json:
        print_json([vars(finding) for finding in found])
    return int(any(finding.state == "wrong" for finding in found))


def _findings(model: str, port: int) -> Iterator[Finding]:
    """All checks; without torch those that need none."""
    yield _python()
    yield (torch := _torch())
    has_torch = torch.state != "wrong"
    if has_torch:
        yield from _kernels()
    yield _load()
    if has_torch:
        yield _rows()
        yield _formats()
        yield from _model(model)
    yield _port(port)


def _python() -> Finding:
    version = platform.python_version()
    fits = sys.version_info >= (3, 11)
    return Finding("Python", "good" if fits else "wrong", version, "" if fits else "install Python 3.11 or newer")


def _torch() -> Finding:
    try:
        import torch
    except Exception as error:  # a broken install fails in any way
        return Finding("torch", "wrong", f"cannot be imported ({error})", "install it again: pip install 'torch>=2.11'")
    build = f"{torch.__version__}, {torch.backends.cpu.get_cpu_capability()}"
    if torch.cuda.is_available():
        return Finding("torch", "good", f"{build}, {torch.cuda.get_device_name(0)}")

    from redraft.weights.defaults import unusable_driver

    found, _, remedy = unusable_driver().partition("; ")
    build += "" if torch.version.cuda is None else ", built for CUDA"
    return Finding("torch", "slow" if found else "good", f"{build}; {found}" if found else build, remedy)


def _kernels() -> Iterator[Finding]:
    """What loads on a GPU found of our kernels, from the user's cache."""
    import torch

    from redraft.engine.kernel_check import AGREES, known

    if not torch.cuda.is_available():
        return
    card = torch.cuda.get_device_name(0)
    found = [(where, parts) for where, parts in known() if where.startswith(f"{card},")]
    if not found:
        yield Finding("kernels", "good", f"not compared with plain torch on {card} yet; the first load does")
    for where, parts in found:
        wrong = [f"{part}: {why}" for part, why in parts.items() if why != AGREES]
        if wrong:
            remedy = "plain torch takes their place, which costs time; report this with the card and the versions"
            yield Finding("kernels", "slow", f"{where}: {'; '.join(wrong)}", remedy)
        else:
            yield Finding("kernels", "good", f"{where}: {', '.join(parts)} agree with plain torch")


def _load() -> Finding:
    cores, busy = os.cpu_count() or 1, os.getloadavg()[0]
    idle = min(8, max(1, round(cores - busy)))
    said = f"{cores} cores, {busy:.1f} busy, so commands use {idle} thread{'s' if idle > 1 else ''} by default"
    slow = busy > cores * 0.75
    return Finding("load", "slow" if slow else "good", said, "other programs keep this machine busy" if slow else "")


def _rows() -> Finding:
    """Whether an answer can depend on its neighbours in a batch here. It runs before any product: see model/sums.py."""
    import torch

    from redraft.model.linear import multiply

    torch.set_num_threads(min(8, os.cpu_count() or 1))
    x, weight = torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)
    whole, few = multiply(x, weight), range(1, ROWS, 7)
    if all(torch.equal(multiply(x[:rows], weight), whole[:rows]) for rows in few):
        return Finding("batches", "good", "products have the same bits however many rows they have")
    said = "a product's last bits depend on how many rows it has, so answers may depend on what else runs"
    return Finding("batches", "slow", said, "use --threads 1 where an answer has to repeat")


def _formats() -> Finding:
    """Which number format is quick here, by a short measurement: the smaller one often is not."""
    import torch

    torch.set_num_threads(1)
    millis = {name: _matmul_ms(getattr(torch, name)) for name in ("float32", "bfloat16")}
    best = min(millis, key=lambda name: millis[name])
    said = ", ".join(f"{name} {ms:.1f} ms" for name, ms in millis.items())
    return Finding("number formats", "good", f"a {ROWS} x {WIDTH} x {WIDTH} matmul takes {said}; use --dtype {best}")


def _matmul_ms(dtype: Any) -> float:
    import torch

    from redraft.model.linear import multiply

    a, b = torch.ones(ROWS, WIDTH, dtype=dtype), torch.ones(WIDTH, WIDTH, dtype=dtype)
    return min(repeat(lambda: multiply(a, b), number=1, repeat=TIMES)) * 1e3


def _model(name: str) -> Iterator[Finding]:
    import torch

    from redraft.config import read_config
    from redraft.text import read_text
    from redraft.weights.gguf import open_source
    from redraft.weights.memory import free_memory
    from redraft.weights.source import locate

    try:
        folder = locate(name)
        config = read_config(folder)
        text = read_text(folder, config)
        open_source(folder)
        if text.has_template:
            text.chat([{"role": "user", "content": "hello"}])
        size = sum(path.stat().st_size for path in folder.glob("*") if path.suffix in (".safetensors", ".gguf"))
    except RedraftError as error:
        yield Finding("model", "wrong", *str(error).rsplit("; ", 1))
        return
    except OSError as error:  # as of a link to what is not there
        yield Finding("model", "wrong", f"{error.filename}: {error.strerror}", "fetch the checkpoint again")
        return
    free = free_memory(torch.device("cpu"))
    said = f"{folder}, {size / 1e9:.3g} GB of weights, context {config.model.max_positions}"
    if free is not None and size > free:
        remedy = f"{free / 1e9:.3g} GB are free; see redraft inspect {name} for number formats that fit"
        yield Finding("model", "wrong", said, remedy)
    else:
        yield Finding("model", "good", said)
    if not text.has_template:
        yield Finding("chat template", "slow", "there is none", "conversations are refused; use /v1/completions")


def _port(port: int) -> Finding:
    try:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", port))
    except OSError as error:
        remedy = "use redraft serve --port 0, or stop its owner"
        return Finding("port", "wrong", f"{port} cannot be used ({error})", remedy)
    return Finding("port", "good", f"{port} is free")

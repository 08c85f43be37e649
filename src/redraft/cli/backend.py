"""`--backend openai`: a command's questions answered by another server that speaks OpenAI's interface."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from redraft.errors import RequestError

if TYPE_CHECKING:
    from redraft.remote.channel import Backend

NEUTRAL: dict[str, object] = {"device": "auto", "dtype": "auto", "accept": [], "min_effort": 0.0, "min_tokens": 0}
NEUTRAL |= dict.fromkeys(("causal", "watch", "graphs", "pin", "infill", "fence", "any_case", "draw", "thinking"), False)
NEUTRAL |= dict.fromkeys(("threads", "plan", "adapter", "offload", "parallel", "trace", "variants", "keep", "check"))
NEUTRAL |= dict.fromkeys(("steps", "entropy_bound", "cooling", "effort", "target_ms", "canvas", "end_aware", "preset"))
NEUTRAL |= dict.fromkeys(("top_k", "regex", "choice", "grammar", "beside", "their_model"))
"""What only a canvas, a checkpoint at hand or a constraint of ours can do, and the value that asks for nothing."""


def backend_flags(parser: argparse.ArgumentParser, *, beside: bool = False) -> None:
    """Where to ask instead of here, or `beside` the model at hand."""
    if beside:
        parser.add_argument("--their-model", metavar="NAME", help="the other server's model, if it has more than one")
    parser.add_argument("--backend", choices=("openai",), help="ask another server that speaks OpenAI's interface")
    parser.add_argument("--base-url", metavar="URL", help="with --backend: where, as http://127.0.0.1:8642/v1")
    parser.add_argument(
        "--api-key-env",
        metavar="NAME",
        help="the variable that holds the key for another server (default: no key is sent)",
    )
    parser.add_argument(
        "--timeout", type=float, metavar="SEC", help="how long another server's answer may take (default: 600)"
    )


def backend_of(arguments: argparse.Namespace, *, beside: bool = False) -> Backend | None:
    """The backend that the flags name, None if they name none. Raises RequestError for flags it cannot honour."""
    if arguments.backend is None:
        for name in ("base_url", "api_key_env", "timeout", "their_model", "prompts"):
            if getattr(arguments, name, None) is not None:
                where = "--beside URL" if "beside" in arguments and name == "their_model" else "--backend openai"
                raise RequestError(f"--{name.replace('_', '-')} was given without {where}; add that")
        return None
    if arguments.base_url is None:
        raise RequestError("--backend openai needs --base-url, as http://127.0.0.1:8642/v1")
    for name, neutral in () if beside else NEUTRAL.items():
        if getattr(arguments, name, neutral) != neutral:
            flag = {"variants": "-n"}.get(name, f"--{name.replace('_', '-')}")
            raise RequestError(
                f"{flag} was given with --backend openai, whose interface has nothing like it: a canvas, or a model at "
                "hand, is needed; leave it out"
            )
    if getattr(arguments, "deadline", None) is not None:
        raise RequestError("--deadline was given with --backend openai; --timeout is how long an answer may take there")

    from redraft.remote.channel import Backend

    return Backend(
        base_url=arguments.base_url,
        model=arguments.their_model if beside else None if arguments.model == "nano" else arguments.model,
        likely=None if beside else arguments.model,
        key_env=arguments.api_key_env,
        seconds=600.0 if arguments.timeout is None else arguments.timeout,
    )


def beside_of(arguments: argparse.Namespace) -> Backend | None:
    """The server that `--beside` names, None without it. Raises RequestError as `backend_of`."""
    there = {} if arguments.beside is None else {"backend": "openai", "base_url": arguments.beside}
    return backend_of(argparse.Namespace(**vars(arguments) | there), beside=bool(there))

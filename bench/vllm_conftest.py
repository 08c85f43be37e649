"""What stands in for vLLM's own fixtures when its tests run against another server (`bench/vllm_tests.py` copies it).

It is the `conftest.py` of the copied tests. `RemoteOpenAIServer` starts nothing and gives the URL of the server that
runs. The tests' tokenizer is the one of its model. Whatever else a test takes from the package vllm skips it when it is
called, because such a test asks a class and no server.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import inspect
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import openai
import pytest
import requests
from transformers import AutoTokenizer

URL = os.environ["PEER_URL"]
MODEL = Path(os.environ["PEER_MODEL"])
OTHER_SERVER = ("--root-path", "--api-key", "--enable-force-include-usage", "--return-tokens-as-token-ids", "--uds")
"""Flags with which the tests start a server that answers otherwise."""


class RemoteOpenAIServer:
    """The server that runs already."""

    DUMMY_API_KEY = "none"

    def __init__(self, model: str, args: Sequence[str] = (), **_rest: Any) -> None:
        if flag := next((one for one in OTHER_SERVER if one in args), None):
            pytest.skip(f"a server started with {flag}")
        self.host, self.port = "127.0.0.1", int(URL.rpartition(":")[2])

    def __enter__(self) -> RemoteOpenAIServer:
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it running."""

    def url_for(self, *parts: str) -> str:
        return "/".join((URL, *(part.strip("/") for part in parts if part)))

    def get_client(self, **rest: Any) -> openai.OpenAI:
        return openai.OpenAI(base_url=self.url_for("v1"), api_key="none", max_retries=0, **({"timeout": 60} | rest))

    def get_async_client(self, **rest: Any) -> openai.AsyncOpenAI:
        return openai.AsyncOpenAI(
            base_url=self.url_for("v1"), api_key="none", max_retries=0, **({"timeout": 60} | rest)
        )


class _ModelConfig:
    """The one question that tests ask of it."""

    def __init__(self, **_rest: Any) -> None: ...

    def get_vocab_size(self) -> int:
        config = json.loads((MODEL / "config.json").read_text(encoding="utf-8"))
        return int(config.get("text_config", config)["vocab_size"])


class _No:
    """Says no to every question, as `current_platform.is_rocm()` and `envs.VLLM_USE_RUST_FRONTEND`."""

    def __getattr__(self, name: str) -> Any:
        return (lambda *_: False) if name.startswith("is_") else False


KNOWN: dict[str, Any] = {
    "RemoteOpenAIServer": RemoteOpenAIServer,
    "ROCM_EXTRA_ARGS": [],
    "ROCM_ENV_OVERRIDES": {},
    "get_tokenizer": lambda *_, **__: AutoTokenizer.from_pretrained(MODEL),
    "ModelConfig": _ModelConfig,
    "current_platform": _No(),
    "envs": _No(),
    "__version__": "vLLM's",
}


class _Module(ModuleType):
    """A module of the package vllm: every name is there, and skips the test that calls it."""

    __path__: list[str] = []  # noqa: RUF012 - a module's own attribute

    def __getattr__(self, name: str) -> Any:
        if name in KNOWN:
            return KNOWN[name]
        if name.startswith("__"):
            raise AttributeError(name)
        if name.endswith("Error"):
            return type(name, (Exception,), {})
        return _absent(f"{self.__name__}.{name}")


def _absent(path: str) -> type:
    def skip(*_: Any, **__: Any) -> Any:
        pytest.skip(f"a class of vLLM's: {path}")

    kind = type("_Meta", (type,), {"__getattr__": lambda _, name: _absent(f"{path}.{name}")})
    found: type = kind(
        path.rpartition(".")[2], (), {"__init__": skip, "__init_subclass__": classmethod(lambda *_, **__: None)}
    )
    return found


class _Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds vllm, all below it, and the tests' own `utils`."""

    def find_spec(self, fullname: str, *_: Any) -> importlib.machinery.ModuleSpec | None:
        if fullname.partition(".")[0] in ("vllm", "pybase64", "schemathesis") or fullname in OURS:
            return importlib.machinery.ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _Module(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Nothing to run."""


OURS = ("tests.utils", "tests.conftest", "tests.models.utils")
sys.meta_path.insert(0, _Finder())


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what asks no server, before its own set-up fails."""
    for item in items:
        source = inspect.getsource(item.function) if isinstance(item, pytest.Function) else ""
        fixtures = getattr(item, "fixturenames", ())
        if not any("server" in name or "client" in name for name in fixtures) and "RemoteOpenAIServer" not in source:
            item.add_marker(pytest.mark.skip(reason="a class of vLLM's, and no server"))


@pytest.fixture(scope="session")
def qwen3_lora_files() -> str:
    """A folder that nothing reads."""
    return "lora"


zephyr_lora_files = qwen3_meowing_lora_files = qwen3_woofing_lora_files = opt125_lora_files = qwen3_lora_files


def pytest_configure() -> None:
    """One look, so that a server that is gone is one error and not hundreds."""
    requests.get(f"{URL}/health", timeout=30).raise_for_status()

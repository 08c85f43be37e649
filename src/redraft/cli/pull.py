"""`redraft pull`: fetch a checkpoint into the local cache. The only command that uses the network."""

from __future__ import annotations

import argparse

from redraft.cli.common import Commands, command, print_json
from redraft.cli.flags import named_model, need_model

EPILOG = """An interrupted pull continues with the files that were not complete. Only configs, tokenizer files, the chat
template and safetensors are fetched; no code is.

example:
  redraft pull google/diffusiongemma-26B-A4B-it"""


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "pull", "fetch a checkpoint into the local cache", run, epilog=EPILOG)
    named_model(parser, "a repository name, as owner/model", default=None)


def run(arguments: argparse.Namespace) -> int:
    """Fetch and say where it is."""
    from redraft.weights.pull import pull

    name = need_model(arguments)
    folder = pull(name, progress=not arguments.json)
    if arguments.json:
        print_json({"name": name, "folder": str(folder)})
    else:
        print(folder)
    return 0

"""`--offload`, `--graphs`: where a model's experts are, and how a GPU steps."""

from __future__ import annotations

import argparse


def place_flags(parser: argparse.ArgumentParser) -> None:
    """The flags."""
    parser.add_argument(
        "--offload", choices=("experts",), help="keep experts in the processor's memory, for a GPU with too little"
    )
    parser.add_argument(
        "--graphs", action="store_true", help="on a GPU, repeat the steps of up to eight canvases as one graph"
    )


def experts_of(arguments: argparse.Namespace) -> str:
    """The `experts` of `load`."""
    return "host" if arguments.offload else "device"

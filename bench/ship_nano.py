"""Puts a checkpoint into the package as nano: weights, tokenizer, settings. Records and pages are next.

    python bench/ship_nano.py runs/nano

The weights are stored in bfloat16, half the size, and computed with in float32, as config.json says, because only there
an answer is the same alone and in a batch, and on most processors. What was measured of other weights (dial, belief) is
removed.
"""

from __future__ import annotations

import argparse
import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

from redraft.tune.vocabulary import CHAT_TEMPLATE
from redraft.weights.fingerprint import fingerprint
from redraft.weights.source import SINGLE, locate

COPIED = ("tokenizer.json", "tokenizer_config.json")
MEASURED = ("dial.json", "belief.json")


def main() -> None:
    """Copy, convert, print what to run next."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path, metavar="FOLDER", help="a checkpoint that redraft tune has written")
    parser.add_argument("--tokens", type=int, default=96, help="most tokens of an answer (default: 96)")
    arguments = parser.parse_args()
    ship(arguments.source, locate("nano"), arguments.tokens)
    print("next: python bench/take.py 'plain-nano*' && python bench/transcripts.py && make docs")


def ship(source: Path, package: Path, tokens: int) -> None:
    """Write the package's folder. `tokens` is the most of an answer, and so the width of a canvas by `fast`.

    The chat template is this tree's: a checkpoint has the one of the day when its training began.
    """
    before = fingerprint(package)
    weights = {name: tensor.bfloat16().contiguous() for name, tensor in load_file(source / SINGLE).items()}
    save_file(weights, package / SINGLE, metadata={"format": "pt"})
    (package / SINGLE).chmod(0o644)
    for name in COPIED:
        shutil.copyfile(source / name, package / name)
    (package / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    _write(package / "config.json", config | {"dtype": "float32"})
    generation = json.loads((source / "generation_config.json").read_text(encoding="utf-8"))
    _write(package / "generation_config.json", generation | {"max_new_tokens": tokens})
    _write(package / "redraft.json", {"preset": "fast"})
    if fingerprint(package) != before:
        for name in MEASURED:
            (package / name).unlink(missing_ok=True)


def _write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

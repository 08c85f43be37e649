"""Measures a model on sentences that people write: what it extracts, edits, repairs and fills in, and what it copies.

    python bench/plain.py --model runs/nano --count 300 --record bench/records/plain-nano.json
    python bench/plain.py --run runs/nano --count 40 --show 10        a run that has not ended

Groups: the tasks of ordinary sentences (values held out, phrasings of the training data; over half of these are newer
than nano), `phrasings` (tests/data/, written apart and never trained on), `strangers` (fifty sentences as a stranger
types them), `newcomers` (by a reader who had seen none of these; logs, lists and other languages among them),
`elsewhere` (texts that say nothing of what is asked: null is right, and another value should be called a guess),
`copies` (random strings and other alphabets), Sudoku.
Records are held to their schema, in which every field may be null, as `redraft json` holds them, and fillings to their
template, as `redraft fill` does. As these commands do for nano, strings are copied word for word out of the text, and
answers are read back: where something else was likelier at a token, the likelier of the canvas's answer and of one from
left to right is taken.
"""

from __future__ import annotations

import argparse
import json
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from random import Random
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch

from redraft import load, prompts
from redraft.constraints.compile.template import read_template
from redraft.constraints.sources import schema_source
from redraft.engine.fields import field_confidence
from redraft.engine.request import Options, Request
from redraft.measure.evals import said, share_of
from redraft.measure.record import new_record, write_record
from redraft.operations.edit_language import edited
from redraft.operations.engine import Engine
from redraft.operations.read_back import second_opinion
from redraft.prompts import Field
from redraft.tasks import Example, stream_seed, task
from redraft.tasks.extract import judge, schema_of
from redraft.tasks.records import read_json
from redraft.tasks.strings import quoted, scramble
from redraft.tasks.task import split_of
from reliability import Guess, calibration_error, fitted, reliability

ROOT = Path(__file__).resolve().parents[1]
RECORDS = ("extract-short", "extract", "extract-lists", "forms", "forms-long")  # tasks whose prompt names fields
OTHERS = ("edit", "mend", "fill", "copy")
GRIDS = ("sudoku-4x4", "sudoku-6x6")
WRITTEN = ("phrasings", "strangers", "newcomers", "elsewhere")
FITTED, JUDGED = "phrasings", ("strangers", "elsewhere")
"""Where the temperature of the probabilities of values is fitted, and where it is judged."""
GROUPS = (*WRITTEN, "copies", *RECORDS, *OTHERS)
STEP = 32  # widths of canvas are multiples of this


@dataclass(frozen=True)
class Answered:
    """One answer: the share of its fields that are right, and what it took."""

    prompt: str
    wanted: str
    got: str
    fields: float
    count: int
    steps: int
    tokens: int
    seconds: float
    guessed: bool
    forwards: int = 0
    """In all: the canvas's steps, the reading back, and a token each of what was written from left to right."""
    rewritten: bool = False
    values: tuple[Guess, ...] = ()
    """Of each plain value its probability, and whether it is right."""

    @property
    def exact(self) -> bool:
        return self.fields == 1.0


def main() -> None:
    """Every group, a line each; with --record, a record."""
    parser = argparse.ArgumentParser(description="Measure a model on ordinary sentences.")
    parser.add_argument("--model", default="nano", help="a checkpoint (default: nano)")
    parser.add_argument("--run", type=Path, metavar="FOLDER", help="a run's folder: its averaged weights as they are")
    parser.add_argument("--count", type=int, default=300, help="examples of a task (default: 300)")
    parser.add_argument("--seed", type=int, default=1, help="which examples and which noise (default: 1)")
    parser.add_argument("--groups", nargs="*", default=GROUPS, choices=(*GROUPS, *GRIDS), help="which groups")
    parser.add_argument("--causal", action="store_true", help="from left to right, by the same weights")
    parser.add_argument("--free", action="store_true", help="hold nothing to a schema")
    parser.add_argument("--canvas", type=int, help="width of every canvas (default: what holds the right answer)")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="print so many wrong answers of each group")
    parser.add_argument("--record", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    with TemporaryDirectory() as passing:
        if arguments.run is not None:
            export(arguments.run, Path(passing))
        engine = load(str(arguments.model if arguments.run is None else passing))
        found = {group: list(answers(engine, group, arguments)) for group in arguments.groups}
    if arguments.record is not None:
        keep(found, arguments)


def answers(engine: Engine, group: str, arguments: argparse.Namespace) -> Iterator[Answered]:
    """The answers of a group; prints its line behind the last."""
    found = []
    for i, example in enumerate(islice(examples(group, arguments.seed), arguments.count)):
        found.append(answer(engine, group, example, arguments, arguments.seed + i))
        yield found[-1]
    print(f"{group}: {line(found)}", flush=True)
    for each in [one for one in found if not one.exact][: arguments.show]:
        print(
            f"    {each.prompt!r}\n        wanted {each.wanted}\n        got    {each.got}{' (a guess)' * each.guessed}"
        )


def line(found: Sequence[Answered]) -> str:
    """What the answers of a group came to."""
    exact = share_of(sum(each.exact for each in found), len(found), "exact")
    fields = sum(each.fields * each.count for each in found) / sum(each.count for each in found)
    steps, seconds = mean(each.steps for each in found), mean(each.seconds for each in found)
    sure = guessed_of(found).items() if any(each.guessed for each in found) else ()
    again, forwards = sum(each.rewritten for each in found), mean(each.forwards for each in found)
    return (
        f"{said(exact, 'exact')} exact, {fields:.1%} of fields, {steps:.2f} steps, {forwards:.1f} forwards,"
        f" {sum(each.tokens for each in found) / sum(each.steps for each in found):.1f} tokens per step,"
        f" {1000 * seconds:.0f} ms"
        + f", {again} of {len(found)} written again" * bool(again)
        + "".join(f", {n} of {count} {name} called a guess" for name, (n, count) in sure)
    )


def examples(group: str, seed: int) -> Iterator[Example]:
    """Examples of a group; those of the written ones end."""
    if group in WRITTEN:
        yield from written(ROOT / "tests" / "data" / f"{group}.txt")
        return
    if group != "copies":
        yield from task(group).examples("held_out", seed)
    rng = Random(stream_seed(group, "held_out", seed))
    while True:  # a name and a string that no rule makes, in a plain sentence
        text = scramble(rng)
        if split_of(text) == "held_out":
            sentence = rng.choice(("The code is {}.", "Her name is {}.", "We met {} there.", "Use {} for it."))
            name = {"The": "code", "Her": "name", "We": "who", "Use": "what"}[sentence.split()[0]]
            yield Example(prompts.extract([Field(name)], sentence.format(text)), json.dumps({name: text}))


def written(path: Path) -> Iterator[Example]:
    """Sentences written by hand: `text || name: value | name (type): value`."""
    for row in path.read_text(encoding="utf-8").splitlines():
        text, _, right = row.partition(" || ")
        fields, values = [], []
        for part in right.split(" | "):
            head, _, value = part.partition(": ")
            name, _, kind = head.partition(" (")
            fields.append(Field(name, kind.rstrip(")") or "string"))
            plain = value == "null" or fields[-1].kind in ("integer", "number", "boolean", "list")
            values.append(value if plain else quoted(value))
        record = ",".join(f"{quoted(field.name)}:{value}" for field, value in zip(fields, values, strict=True))
        yield Example(prompts.extract(fields, text), "{" + record + "}")


def template_of(prompt: str) -> str:
    """The template of a filling's prompt (`prompts.fill`)."""
    head = prompt.removeprefix("Fill in:")
    return head[1:].partition("\nfrom:\n")[0] if head[0] == "\n" else head[1:].partition("\n")[0]


def text_of(prompt: str, template: str = "") -> str:
    """The text that values are copied from: behind the first line, or behind a template of several."""
    return prompt.partition("\nfrom:\n" if "\n" in template else "\n")[2]


def answer(engine: Engine, group: str, example: Example, arguments: argparse.Namespace, seed: int) -> Answered:
    """Ask one, by `fast` or from left to right, on a canvas that holds the right answer unless a width is given."""
    needed = len(engine.text.encode(example.answer, bos=False)) + 1
    width = arguments.canvas or min(-(-needed // STEP) * STEP, engine.config.model.canvas_length)
    most = max(width, -(-needed // width) * width)
    options = Options(preset="fast", canvas=width, max_tokens=most, seed=seed)
    if arguments.causal:
        options = Options(causal=True, max_tokens=most, seed=seed, temperature=0.0)
    record = group in RECORDS or group in (*WRITTEN, "copies")
    held = record and not arguments.free and not arguments.causal
    began, before = time.monotonic(), engine.loop.forwards
    source = schema_source(schema_of(example.prompt), spaces=False, verbatim=text_of(example.prompt)) if held else None
    if group == "fill" and not arguments.free and not arguments.causal:
        template = template_of(example.prompt)
        untyped = dict.fromkeys(re.findall(r"\{\{(\w+)\}\}", template), "string")
        source = read_template(template, untyped, text_of(example.prompt, template)).source()
    if group == "edit" and not arguments.free and not arguments.causal:
        asked, _, record_text = example.prompt.removeprefix("Edit: ").partition("\n")
        source = edited(record_text, asked)
    language = None if source is None else engine.language(source)
    request = engine.resolve(Request(example.prompt, chat=True, options=options, constraint=language))
    canvas = done = engine.run(request)
    opinion = None if source is None else second_opinion(engine, request, done)
    done = canvas if opinion is None else opinion.done
    seconds = time.monotonic() - began
    wanted, got = read_json(example.answer), read_json(done.text)
    fields = judge(wanted, got) if record else float(task(group).score(example, done.text).exact)
    count = len(wanted) if record and isinstance(wanted, dict) else 1
    guessed = held and opinion is not None and bool(opinion.guesses(engine.text))
    named = wanted if held and isinstance(wanted, dict) else {}
    sure = field_confidence(engine.text, done) if named else {}
    values = tuple(
        Guess(sure[f"/{name}"], judge({name: value}, got) == 1.0) for name, value in named.items() if f"/{name}" in sure
    )
    return Answered(
        example.prompt,
        example.answer,
        done.text,
        fields,
        count,
        steps=sum(canvas.steps),
        tokens=needed,
        seconds=seconds,
        guessed=guessed,
        forwards=engine.loop.forwards - before,
        rewritten=opinion is not None and opinion.instead_of is not None,
        values=values,
    )


def export(run: Path, folder: Path) -> None:
    """Write a run's averaged weights, as its last saved state has them, as a checkpoint. They need no decay."""
    from redraft.tune.base import read_base
    from redraft.tune.recipe import read_recipe
    from redraft.tune.train import averaged

    recipe = read_recipe(ROOT / "recipes" / "nano.toml")
    base = read_base(recipe, folder)
    saved = torch.load(run / "training-state.pt", map_location="cpu", weights_only=True)
    base.save(averaged(base, saved["average"]), folder)
    print(f"behind {saved['step']} steps", flush=True)


def guessed_of(answers: Sequence[Answered]) -> dict[str, list[int]]:
    """Of the right and of the wrong answers: how many the shell would call a guess, and how many there are."""
    parts = {"right": [each for each in answers if each.exact], "wrong": [each for each in answers if not each.exact]}
    return {name: [sum(each.guessed for each in part), len(part)] for name, part in parts.items()}


def believed(found: dict[str, list[Answered]]) -> dict[str, Any]:
    """How far the probabilities of values can be believed, as they are and at the temperature fitted on FITTED."""

    def at(groups: Sequence[str], temperature: float) -> list[Guess]:
        every = [guess for group in groups for each in found[group] for guess in each.values]
        return [Guess(guess.probability ** (1 / temperature), guess.right) for guess in every]

    temperature = fitted(lambda temperature: at([FITTED], temperature))
    figures: dict[str, Any] = {"temperature": round(temperature, 3)}
    for label, used in (("as they are", 1.0), ("at the temperature", temperature)):
        guesses = at(JUDGED, used)
        figures[label] = {
            "count": len(guesses),
            "error": round(calibration_error(guesses), 4),
            "reliability": [asdict(one) for one in reliability(guesses)],
        }
    return figures


def keep(found: dict[str, list[Answered]], arguments: argparse.Namespace) -> None:
    """A record of all groups; of the strangers' sentences, each with what came out."""
    figures: dict[str, Any] = {}
    for group, all_of in found.items():
        right = share_of(sum(each.exact for each in all_of), len(all_of), "exact")
        fields = sum(each.fields * each.count for each in all_of) / sum(each.count for each in all_of)
        figures[group] = right | {
            "count": len(all_of),
            "fields": round(fields, 4),
            "steps": round(mean(each.steps for each in all_of), 3),
            "forwards": round(mean(each.forwards for each in all_of), 3),
            "milliseconds": round(1000 * mean(each.seconds for each in all_of), 1),
        }
        figures[group] |= {"guesses": guessed_of(all_of), "rewritten": sum(each.rewritten for each in all_of)}
        if group in ("strangers", "newcomers", "elsewhere"):
            figures[group]["answers"] = [[each.prompt, each.wanted, each.got] for each in all_of]
    way = "from left to right" if arguments.causal else "fast"
    name = Path(arguments.run or arguments.model).name
    workload = {"model": name, "count": arguments.count, "seed": arguments.seed, "way": way, "free": arguments.free}
    workload["canvas"] = arguments.canvas or "what holds the right answer"
    summary = [(f"{group}, {len(each)} answers of {name}, {way}", line(each)) for group, each in found.items()]
    if not arguments.causal and {FITTED, *JUDGED} <= found.keys():
        figures["values"] = believed(found)
        before, after = (figures["values"][label]["error"] for label in ("as they are", "at the temperature"))
        what = f"calibration error of the values of {' and '.join(JUDGED)}, as they are and at a temperature of"
        summary.append((f"{what} {figures['values']['temperature']}", f"{before:.1%}, {after:.1%}"))
    write_record(
        new_record(arguments.record.stem, workload=workload, figures=figures, summary=summary), arguments.record
    )


if __name__ == "__main__":
    main()

"""README's figures, out of their records: the first screen, speed beside transformers, accuracy beside causal mode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from redraft.config import read_config
from redraft.measure.parameters import count_parameters
from redraft.measure.record import Record, read_record
from redraft.weights.source import locate

SCENARIOS = ("one", "together", "poisson", "variants", "long", "long-4k")
OTHERS = {"edit": "changed records", "mend": "repaired ones", "fill": "filled templates"}
SIDES = {
    "eval-nano-sudoku": "canvas, the reference's rules",
    "eval-nano-sudoku-fast": "canvas, preset `fast`",
    "eval-nano-sudoku-causal": "causal, one token per forward",
}


def headline(root: Path) -> str:
    """What a reader of the first screen should know, in figures."""
    one, together, constraints, canvas, causal = (
        read_record(root / "bench" / "records" / f"{name}.json")
        for name in (
            "throughput-one",
            "throughput-together",
            "constraints",
            "eval-nano-sudoku-fast",
            "eval-nano-sudoku-causal",
        )
    )
    (ours, fast), (ours_together, fast_together) = (
        (record.figures["ratio_median"]["ours"], record.figures["ratio_median"]["ours_fast"])
        for record in (one, together)
    )
    drafts, tokens = canvas.figures["sudoku-6x6"], causal.figures["sudoku-6x6"]
    noise = constraints.figures["noise"]
    points = (
        "**Faster than the reference implementation.** On one CPU thread and the same weights, "
        f"{fast:.1f} times the tokens per second of transformers for single questions, {fast_together:.0f} times for 8 "
        f"that arrive together. By the reference's own rules, on canvases of 256 tokens, {ours:.1f} and "
        f"{ours_together:.1f} times; the rest comes from canvases no wider than the answer needs, and from stopping "
        "once the draft is certain.",
        "**Valid JSON, or an error.** A JSON Schema, a regular expression or a grammar constrains an answer, whatever "
        f"the model prefers: {noise['invalid']} of {noise['trials']} answers to random schemas, on logits of "
        "pure noise, were invalid.",
        f"**Better where an answer needs looking ahead.** 6x6 Sudokus: {drafts['exact']:.0%} right, in "
        f"{drafts['mean_steps']:.1f} forwards each; the same weights, one token per forward: "
        f"{tokens['exact']:.0%}, in {tokens['mean_steps']:.0f}.",
    )
    return "\n".join(f"* {point}" for point in points)


def nano(root: Path) -> str:
    """How often the model of the first commands is right."""
    figures = read_record(root / "bench" / "records" / "plain-nano.json").figures
    typed, phrased, own = figures["strangers"], figures["phrasings"], figures["elsewhere"]
    other = figures["newcomers"]
    others = ", ".join(f"{figures[name]['exact']:.0%} of {what}" for name, what in OTHERS.items())
    wrong, right = typed["guesses"]["wrong"], typed["guesses"]["right"]
    millions = count_parameters(read_config(locate("nano")).model).total / 1e6
    return (
        f"nano has {millions:.1f} million parameters and makes mistakes. The JSON is always valid; the values may be "
        f"wrong. Of {typed['count']} short sentences that we typed as a stranger might, `redraft json` gets "
        f"{typed['exact']:.0%} right, and {typed['fields']:.0%} of their fields, in {typed['steps']:.1f} steps of the "
        f"canvas and {typed['forwards']:.1f} forwards in all ([record](bench/records/plain-nano.json), with every "
        f"answer). Of {other['count']} that a newcomer wrote, logs, lists and other languages among them, it gets "
        f"{other['exact']:.0%}, and {other['fields']:.0%} of the fields. Of "
        f"{phrased['count']} phrasings that its training data lacks, it gets {phrased['fields']:.0%} of the fields "
        f"right. If a text does not say what is asked, null is the right answer, and nano gives it for "
        f"{own['fields']:.0%} of such fields. An answer that is unlikely when read back is written again, from left to "
        f"right: {typed['rewritten']} of the typed ones were. On stderr `json` names values that look like a "
        f"guess: it did so for {wrong[0]} of the {wrong[1]} wrong answers to the typed sentences, and for {right[0]} "
        f"of the {right[1]} right ones. nano was also trained on other tasks; it gets {others} right."
    )


def speed(root: Path) -> str:
    """A row for each scenario of `redraft bench --scenario`: ours by two presets beside transformers."""
    rows = [
        "| CPU, one thread, float32 | transformers | `reference` | `fast` | p95 latency, ms | exact, % |",
        "|---|---|---|---|---|---|",
    ]
    records = {name: read_record(root / "bench" / "records" / f"throughput-{name}.json") for name in SCENARIOS}
    return "\n".join([*rows, *map(_scenario, records.values()), "", _footing(records["one"])])


def accuracy(root: Path) -> str:
    """A row for each task of `redraft eval`: the reference's rules, `fast`, the causal mode of the same weights."""
    found = [read_record(root / "bench" / "records" / f"{name}.json").figures for name in SIDES]
    links = [f"[{what}](bench/records/{name}.json)" for name, what in SIDES.items()]
    rows = [f"| exact answers (forwards per answer) | {' | '.join(links)} |", "|---|---|---|---|"]
    for task in dict.fromkeys(task for side in found for task in side):
        rows.append(f"| {task} | {' | '.join(_share(side.get(task)) for side in found)} |")
    return "\n".join(rows)


def _scenario(record: Record) -> str:
    sides = [record.figures[side] for side in ("transformers", "ours", "ours_fast")]
    unit, ratios = record.figures["ratio_of"], record.figures["ratio_median"]
    speeds = [f"{side[unit]:,.0f}" if side[unit] >= 100 else f"{side[unit]:.3g}" for side in sides]
    within = " / ".join(f"{side['latency_ms']['p95']:.0f}" for side in sides)
    exact = [side["exact"] for side in sides]
    right = " / ".join(f"{one['share'] * 100:.0f}" for one in exact) if all(exact) else "random weights"
    what = {"tokens_per_sec": "tokens/s", "requests_per_sec": "requests/s"}[unit]
    about = f"[{record.workload['scenario']}](bench/records/{record.name}.json), {what}"
    ours, fast = (f"{speed}, **{ratios[who]:.1f}x**" for speed, who in zip(speeds[1:], ratios, strict=True))
    return f"| {about} | {speeds[0]} | {ours} | {fast} | {within} | {right} |"


def _footing(one: Record) -> str:
    peak = one.figures["peak_mib"]
    return (
        f"Medians of paired runs in one process, same checkpoint and prompts, {one.machine['processor']}, beside "
        f"transformers {one.workload['transformers']}. Three numbers in a cell: transformers, redraft with the preset "
        "`reference`, redraft with `fast`. transformers and `reference` denoise 256 rows a step and are bound by the "
        "same matmuls. `fast` uses canvases no wider than `max_tokens` asks for, and no step to confirm a certain "
        "answer. The last column is there because speed must not cost right answers; some workloads are beyond "
        "the model in any engine. Peak memory, one request at a time: "
        f"{peak['ours']:.0f} MiB, transformers {peak['transformers']:.0f}."
    )


def _share(found: dict[str, Any] | None) -> str:
    if found is None:
        return "not measured"
    half = (found["high"] - found["low"]) / 2
    return f"{found['exact']:.1%} ± {half * 100:.1f} ({found['mean_steps']:.1f})"

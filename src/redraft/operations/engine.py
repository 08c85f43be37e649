"""The engine that users get: the core, and every operation as a method of it.

    engine = redraft.load("nano")
    done = engine.extract("Send 3 apples to Maria.", "who, qty int, item", seed=7)
    async for delta in engine.stream("Once upon a time"): ...

A method is its operation's function, with the same arguments.
"""

from __future__ import annotations

from redraft.engine.engine import Core
from redraft.operations import decide as decisions
from redraft.operations import edit as edits
from redraft.operations import fill as fills
from redraft.operations import generate as answers
from redraft.operations import infill as gaps
from redraft.operations import stream as streams
from redraft.operations import variants as several


class Engine(Core):
    """A model, its tokenizer and its settings, ready to answer."""

    generate = answers.generate
    extract = answers.extract
    extract_many = answers.extract_many
    map = answers.map_requests
    stream = streams.stream
    variants = several.variants
    infill = gaps.infill
    infill_all = gaps.infill_all
    edit = edits.edit
    fill = fills.fill
    decide = decisions.decide
    decide_all = decisions.decide_all

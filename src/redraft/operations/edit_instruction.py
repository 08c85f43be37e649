"""A span written anew by an instruction: held to any text, or, by a model of single records, as keys and values.

What an instruction makes of a span has no width: "remove the price" is shorter, "add a city" longer. So the answer is
held to a language, any text and then what stands behind the span, and the projection weighs all widths at once. That
language is kept nowhere: the next text has another.

A model of single records sees the span's whole lines as one record (`edit_record`), and nothing else of the text.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from redraft import prompts
from redraft.constraints.compile.automaton import Compiled
from redraft.constraints.compile.builder import Builder
from redraft.constraints.compile.limits import PREPARING, CompileLimits
from redraft.constraints.compile.values import text_of
from redraft.constraints.language import Language, Source, ready
from redraft.engine.engine import Core
from redraft.engine.request import Options, Request
from redraft.errors import ConstraintError, DeadlineError, RequestError
from redraft.operations.edit_language import edited
from redraft.operations.edit_record import MOST_MEMBERS, Record, record_of, too_large, turns_of
from redraft.operations.edit_wording import excepting
from redraft.operations.formats import is_of, judge_of
from redraft.operations.gap import WIDTH_STEP
from redraft.operations.infill import UNREADABLE
from redraft.operations.read_back import second_opinion

MARK = "\ufeff"  # of byte order, in front of a file
NO_RECORD = (
    "the lines are no keys and values, nor one record, which is all that this model can edit by an instruction;"
    " give one line or record of it, as FILE:8, or load a larger model"
)


class Revision(NamedTuple):
    """A span written anew: how, in how many canvases and steps, and whether the time cut one of them."""

    text: str
    canvases: int
    forwards: int
    is_cut: bool
    left_out: tuple[str, ...] = ()
    guesses: tuple[str, ...] = ()

    def then(self, one: Revision) -> Revision:
        """This, written anew once more."""
        counts = self.canvases + one.canvases, self.forwards + one.forwards
        left_out, guesses = self.left_out + one.left_out, self.guesses + one.guesses
        return Revision(one.text, *counts, self.is_cut or one.is_cut, left_out, guesses)


def lines_alone(shown: list[str]) -> list[str]:
    """The span without what is around it, if it is whole lines of a text that is no JSON document by itself: more than
    one record is nothing that a model of single records was taught."""
    above, below = shown[0].rpartition("\n")[2], shown[2].partition("\n")[0]
    if above.strip(f"{MARK} \t") or below.strip() or is_of("JSON", "".join(shown)):
        return shown
    return ["", shown[1], ""]


def tokens_before(engine: Core, shown: Sequence[str], instruction: str | None) -> list[int]:
    """The tokens before the span: the text there, in an answer if there is an instruction. What lies further away than
    attention reaches is left out."""
    near = shown[0][-engine.text.reach :]
    if instruction is None:
        return engine.text.encode(near, bos=True)
    prompt = prompts.edit(instruction, "".join(shown).rstrip("\n"))
    asked = engine.text.chat([{"role": "user", "content": prompt}])
    engine.resolve(Request(asked, Options(max_tokens=1)))  # an instruction out of reach is none
    return asked + engine.text.encode(near, bos=False)


def rewritten(
    engine: Core,
    before: Sequence[int],
    shown: Sequence[str],
    room: int,
    left: Callable[[], Options],
    language: Language | None = None,
) -> Revision | None:
    """The span as an instruction makes it, read back where it is held to a `language`. None if one canvas has no room
    for it and what follows, if the context has none, if what follows cannot be held, or if the span would grow by more
    than `room` tokens. Line ends behind everything are not the model's."""
    rest, model, encode = shown[2].rstrip("\n"), engine.config.model, engine.text.encode
    if len(rest) > engine.text.reach or room < 0:
        return None
    most = len(encode(shown[1], bos=False)) + room
    needed = most + len(encode(rest, bos=False)) + 1
    width = -(-needed // WIDTH_STEP) * WIDTH_STEP
    if width > model.canvas_length or len(before) + width >= model.max_positions:
        return None
    try:
        anything = Source("edit", rest, partial(_anything_before, rest))
        held = ready(anything, engine.vocabulary) if language is None else language
    except ConstraintError:
        return None
    request = Request([*before], replace(left(), max_tokens=needed, canvas=width), constraint=held)
    done = engine.run(request)
    if not sum(done.steps):  # no text is a text, too
        raise DeadlineError("the time was up before anything had been drafted; raise deadline_sec")
    if language is not None and done.finish == "stop":
        with suppress(DeadlineError):  # what nobody had the time to read back is an answer, too
            done = second_opinion(engine, request, done).done
    after = done.text.removesuffix(rest).replace(UNREADABLE, "")
    found = Revision(after, 1, sum(done.steps), done.finish == "deadline")
    return found if len(encode(after, bos=False)) <= most else None


def _possible(engine: Core, record: str, instruction: str) -> str | Language | None:
    """What an instruction can make of a record: the one text that it can, or a language of several; None where that
    cannot be held."""
    source, found = edited(record, instruction), list[Compiled]()
    if source is None:
        return None
    make = source.compile

    def compiled(limits: CompileLimits) -> Compiled:
        found.append(make(limits))
        return found[-1]

    with suppress(ConstraintError):
        language = ready(replace(source, compile=compiled), engine.vocabulary)
        sole = found[0].dfa.trimmed().sole
        return language if sole is None else sole.decode()
    return None


def _shown_record(engine: Core, lines: str, instruction: str, room: int) -> Record | None:
    """The record that lines are, with as many of its members as a canvas has room for."""
    most = MOST_MEMBERS
    while (record := record_of(lines, instruction, most)) is not None and most > 1:
        if len(engine.text.encode(record.text, bos=False)) + room + WIDTH_STEP <= engine.config.model.canvas_length:
            break
        most //= 2
    return record


def in_lines(engine: Core, shown: Sequence[str], instruction: str, room: int, left: Callable[[], Options]) -> Revision:
    """Lines of keys and values as an instruction makes them; as they are where that cannot be written, or where they
    are settings of another kind. A span within a line is what its whole line becomes, less what is around it, if that
    stays. Raises RequestError for other lines."""
    plain, written = excepting(instruction)
    if written:
        one = in_lines(engine, shown, plain, room, left)
        for now, before in reversed([(now.strip(), before.strip()) for now, before in written]):
            as_said = before.replace("\\", r"\\")
            said = tuple(re.sub(re.escape(now), as_said, text, flags=re.IGNORECASE) for text in one.left_out)
            one = one._replace(left_out=said, text=one.text if now in shown[1] else one.text.replace(now, before))
        return one
    if shown[1].startswith(MARK):
        one = in_lines(engine, [shown[0], shown[1][1:], shown[2]], instruction, room, left)
        return one._replace(text=MARK + one.text)
    shown = [shown[0].removeprefix(MARK), *shown[1:]]
    lead = shown[0].rpartition("\n")[2]
    before = shown[0][: len(shown[0]) - len(lead)]
    tail = shown[2].partition("\n")[0].rstrip()
    if tail or lead.strip(" \t"):
        whole = in_lines(engine, [before, lead + shown[1] + tail, shown[2][len(tail) :]], instruction, room, left)
        within = whole.text[len(lead) : len(whole.text) - len(tail)]
        if whole.text == lead + within + tail:
            return whole._replace(text=within)
        return whole._replace(text=shown[1], left_out=(f'"{instruction}"',))
    if len(parts := turns_of(lead + shown[1], instruction)) > 1:
        whole = Revision(shown[1], 0, 0, False)
        for part in parts:
            one = in_lines(engine, [shown[0], whole.text, shown[2]], part, room, left)
            whole = whole.then(one)
        return whole
    as_it_was = Revision(shown[1], 0, 0, False, (f'"{instruction}"',))
    with PREPARING.turn(secrets.token_hex(), counted=False):  # among all callers, since it is Python's alone
        record = _shown_record(engine, lead + shown[1], instruction, room)
        text = "".join(shown)
        is_object = text.lstrip().startswith("{") and not re.search(r"[{\[]", text.lstrip()[1:]) and is_of("JSON", text)
        is_line = "\n" not in text.strip() and not is_object
        long = too_large(lead + shown[1], instruction) if record is None else ""
        if long or (record is None and (is_line or judge_of(text) is None)):
            raise RequestError(long or NO_RECORD)
        asked = instruction if record is None else record.asked(instruction)
        possible = None if record is None else _possible(engine, record.text, asked)
    if record is None:
        return as_it_was
    if isinstance(possible, str):
        made: Revision | None = Revision(possible, 0, 0, False)
    else:
        alone = ["", record.text, ""]
        made = rewritten(engine, tokens_before(engine, alone, asked), alone, room, left, possible)
    if made is None:
        return as_it_was
    with PREPARING.turn(secrets.token_hex(), counted=False):
        after = record.after(made.text, before, shown[2])
        is_written = after is not None and after.startswith(lead)
        left_out = record.left_out(asked, made.text if is_written else record.text)
    if after is None or not is_written:
        return made._replace(text=shown[1], left_out=left_out)
    guesses = record.guesses(asked, made.text)
    return made._replace(text=after.removeprefix(lead), left_out=left_out, guesses=guesses)


def _anything_before(rest: str, limits: CompileLimits) -> Compiled:
    """Any text, and then this one."""
    build = Builder(limits)
    return Compiled(build.finish(build.then(build.embed(text_of()), build.literal(rest.encode()))))

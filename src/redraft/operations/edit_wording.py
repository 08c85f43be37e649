"""An instruction in the words that its clauses are read in (`edit_clauses`).

Use web1 as the host, and the retries to 10      Set host to web1, and max_retries to 10
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from redraft.operations.edit_member import OPENS, Member, above, hidden, quoted, shared, words_of
from redraft.operations.edit_names import ASKING, NOUNS, OPPOSITES, PLAIN_WORDS, SPOKEN, named_by

_ASSIGNED = re.compile(r"^\s*([\w.-]+)=(?=\S)")
"""As the line of a file that it is to be."""
_ADDED = re.compile(
    rf"((?:^|[,;.] |\band )\s*add (?:an? |the )?)(?:(?:new |environment )?(?:{NOUNS}) (?:named |called )?)?([\w.-]+)"
    rf"(?: (?:{NOUNS}))?"
    r"(?: ?= ?| with (?:the )?(?:value )?| of | set to | (?:that|which) (?:runs|is) | running )",
    re.IGNORECASE,
)
_RUN_ON = re.compile(r"(=[^\s,;]+) (?=[\w.-]+=)")
"""Behind one of several `KEY=value`."""
_LOUD = r"(?<![\w.-])[A-Z][A-Z0-9]*(?:_[A-Z0-9]+|(?==))+"
"""A key in capitals that is none yet."""
_VERB = re.compile(r"(?:remove|delete|drop|add|rename|clear|change|make|update|replace|put|use)\b", re.IGNORECASE)
"""It was taught these with a capital, and a point at the end."""
_WHAT = r"[\w-]+(?: (?!and\b|to\b|on\b|off\b)[\w-]+){0,3}"
_SWITCHING = re.compile(
    rf"(?:^|(?<=[.,;:] )|(?<= and )|(?<=please ))(?:(?:turn|switch) (?P<state>on|off) (?:the )?(?P<what>{_WHAT})"
    rf"|(?:turn|switch) (?:the )?(?P<named>{_WHAT}) (?P<how>on|off)"
    rf"|(?P<verb>enable|disable|(?:de)?activate) (?:the )?(?P<which>{_WHAT}))"
    rf"|(?<= and )(?:the )?(?P<also>{_WHAT}) (?P<too>on|off)(?=$|[.,;!]| and )",
    re.IGNORECASE,
)
_ALL_SWITCHED = (
    r"\b((?:en|dis)able|(?:de)?activate|(?:turn|switch) (?:on|off)) ([\w -]+?)(?:, (?:and )?| and )"
    r"(?:the )?({0})(?= and |[.,;!]|$)"
)
"""Behind the first of several that are turned on or off."""
_ON_OR_OFF = '"?(?:true|false|yes|no|on|off)\\b'
_ITEM = re.compile(
    r"(?:the )?([A-Za-z][\w -]*?) (-?\d\S*(?: (?:second|minute|hour|day|week|month|year)s?)?|on|off|true|false|yes|no)",
    re.I,
)
"""Words and a value, alone."""
_MODES = frozenset(("mode", "flag", "setting", "option", "feature", "support", "the", "a", "for", "of", "again"))
"""Words of what is turned on or off that its key need not have."""

LEAST_NAMED = 3
"""Letters of the longest of some words that stand for the key that has them."""
_UNNAMED = (
    r"((?:^(?:please )?|,? and |, |[.;] )(?:(?:set|change|update|put|switch|bump|upgrade|raise|lower|increase|decrease)"
    r" )?(?:the )?(?<! to ))([a-z][\w-]*(?: [a-z][\w-]*){0,2})"
    r"(?= (?:from \S+ )?to \S| should be \S| ?(?:=|->|→|=>|:) ?\S)"
    r"|(\bas (?:the )?)([a-z][\w-]*)(?=$|[.!,]| and )"
)
"""Where the words of a key may stand in a clause that sets it."""
_OTHERWISE = (
    (r"(?:\buse |(?<=\band ))(\S+) as (?:the )?({0})(?![\w-]|\.\w)", r"set \2 to \1"),
    (
        r"\b(?:scale (?:it )?(?:up |down )?to|(?:we now )?have|run with|use|run|with|allow) (?:only )?"
        r"(-?\d[\d.]*|two|three|four|five|six|seven|eight|nine|ten|twelve|twenty) ({0})(?=[.!,;]|$| and | please)",
        r"set \2 to \1",
    ),
    (r"\bgive (?:the )?({0}) (?:the )?value (?=\S)", r"set \1 to "),
    (r"\bassign (\S+) to (?:the )?({0})(?![\w-]|\.\w)", r"set \2 to \1"),
    (r"(?:\buse |(?<=\band ))(\S+) for (?:the )?({0})(?=$|[.,;!]| and )", r"set \2 to \1"),
    (r"\bpoint (?:the )?({0}) at (?=\S)", r"set \1 to "),
    (r"\buse (\S+) instead of (\S+?)(?: (?:for|in) (?:the )?({0}))(?![\w-]|\.\w)", r"replace \2 with \1 in \3"),
    (r"\buse (\S+) instead of (\S+?)(?=[.!]?$)", r"replace \2 with \1"),
)
"""Other ways to set and to replace, of keys by their patterns."""
_BUT = re.compile(
    r"\b(everything(?: else)?(?: (?:in|of|under) (?:the )?[\w.-]+)?|anything|every (?:single )?[\w-]+"
    r"|the (?:rest|others|other [\w-]+)"
    r"|(?:all|any|each)(?: (?!(?:but|to|in|from|is|are|be|by|with|should|must)\b)[\w-]+){0,3}"
    r"(?: (?:in|of|under) (?:the )?[\w.-]+)?)\s+but\s+"
    r"(?!(?:set|keep|leave|rename|remove|delete|drop|change|make|turn|switch|add|use|replace|disable|enable|increase"
    r"|decrease|double|halve|bump|put|do|don['’]?t|never|please|then|now|also)\b)",
    re.IGNORECASE,
)
"""What something is left out of; behind it no clause of its own, which a verb begins."""
_LEFT_OUT = re.compile(
    r"\b((?:except(?: for)?|apart from|other than) (?:the )?(?:(?:keys|fields|values|settings|properties) )?)"
    r"([\w.-]+(?:(?:, (?:and )?| and )(?:the )?[\w.-]+)+)"
    r"(?=,? (?:to|be|is|are|should|must|set|change|make|put|update|turn|switch)\b|\s*[.;!]?$)",
    re.IGNORECASE,
)
"""Several that are left out."""
_DENIED = re.compile(r"(?:\bnot|\bnever|n['’]t) [\w-]+ $", re.IGNORECASE)
_NAMED_AS = re.compile(r"[^.,;]* as (?:the|its)\b", re.IGNORECASE)
MOST_READ = 2**12
"""Characters of an instruction in which what is left out is looked for: each place asks for all in front of it."""
_VALUED = re.compile(
    r"(?:(?<!\bhas)(?<!\bhave)(?<!\bneed)(?<!\bneeds)(?<!\bwant)(?<!\bwants)(?<!\blike) to |=|: | is | be | by | with )"
    r"(?:(?![.,;] | and ).)*$",
    re.IGNORECASE,
)
"""Behind this stands a value, no word of which is the instruction's."""
_SEPARATOR = re.compile(r",? and |[.,;] ")
_COUNTED = re.compile(r"^\d+[.)] ")
_BREAK = re.compile(r"[.;,]?\s*\n\s*(?:\d+[.)] )?")
"""Where a line of it begins, which may be counted."""
_ASIDE = re.compile(r"^[^:=,.;\n]{3,60}(?<! to)(?<! be):\s+(?=[\w.-]+=\S+[,;]? (?:and )?[\w.-]+=)")
"""What several settings are for, before the first of them."""


def excepting(instruction: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    """An instruction with "except" for a "but" that names what is left out of everything, and in front of each of
    several; and what it wrote in place of what."""
    if len(instruction) > MOST_READ:
        return instruction, ()
    text, inside = hidden(instruction)
    written = list[tuple[str, str]]()

    def plain(found: re.Match[str]) -> str:
        asks = _DENIED.search(found.string[max(0, found.start() - 40) : found.start()])  # for what stands behind "but"
        if asks or _NAMED_AS.match(found.string[found.end() :]):
            return found[0]
        written.append((f"{found[1]} except ", found[0]))
        return written[-1][0]

    def each(found: re.Match[str]) -> str:
        written.append((found[1] + re.sub(r"(, (?:and )?| and )", r"\1except ", found[2]), found[0]))
        return written[-1][0]

    text = _rewritten(_LEFT_OUT, each, _rewritten(_BUT, plain, text))
    return text.translate(inside), tuple(written)


def on_one_line(instruction: str) -> str:
    """An instruction with signs for the ends of its lines, which are not counted any more."""
    return re.sub(r"\?\s+(?=[A-Z])", ". ", _BREAK.sub("; ", _COUNTED.sub("", instruction.strip())))


def plainly(lines: Sequence[str | Member], shown: Mapping[int, Member], instruction: str) -> str:
    """An instruction about some members of lines in the words that a model of records was taught: `=` between spaces,
    keys as they are shown, no sections, and "set debug to false" for "turn off debug"."""
    text, inside = hidden(on_one_line(instruction), (one.name for one in shown.values()))
    over = {i: words_of(" ".join(above(lines, i))) for i in shown}
    if (aside := _ASIDE.match(text)) and not any(words_of(one.name) <= words_of(aside[0]) for one in shown.values()):
        text = text[aside.end() :]
    text = _listed(text, shown)
    switches = [named_by(quoted(one.name)) for one in shown.values() if one.json in OPPOSITES]
    for _ in switches:
        if found := re.search(_ALL_SWITCHED.format("|".join(switches)), text, re.IGNORECASE):
            text = f"{text[: found.end(2)]} and {found[1]} {text[found.start(3) :]}"
    text = _rewritten(_SWITCHING, lambda one: _switched(one, shown, over), text)
    text = _rewritten(_RUN_ON, r"\1, ", text)
    text = _ASSIGNED.sub(r"\1 = ", text)
    texts = (line for line in lines if isinstance(line, str))
    heads = words_of(" ".join(line for line in texts if OPENS.fullmatch(line.strip())))
    if some := "|".join(heads & words_of(text)):
        section = rf" (?:the )?(?:{some})(?: section| service)?(?!\w)"
        if text.lower().startswith("add "):  # KEY: VALUE to SECTION
            text = re.sub(rf" (?:of|in|for|under|from|at|to){section}(?=[.!]?$)", "", text, flags=re.I)
        text = _rewritten(rf" (?:of|in|for|under|from|at){section}", "", text)
    for i, one in shown.items():
        bare = rf"(?:{named_by(quoted(one.name))}|{re.escape(one.name)}(?![\w-]))"
        if own := "|".join(re.sub("(.{3}.*?)(g?ing)$", r"\1(?:\2)?", word) for word in over[i]):
            text = _rewritten(rf"(?<![\w.-])(?:{own})(?:['’]s? |[ .])(?=(?:(?:{own})[ .])?{bare})", "", text)
            words = "|".join(re.sub("s$", "s?", word) for word in over[i])  # "the memory limit" of limits
            text = _rewritten(rf"({bare}) (?:{words})(?= (?:to|from|should|must|is)\b)", r"\1", text)
        if others := "|".join(heads - words_of(one.name)):  # another section's, which is not shown
            elsewhere = rf"(?<![\w.-])({others})(?:['’]s)? (?={re.escape(one.name)}(?![\w-]))"
            text = _rewritten(elsewhere, r"\1.", text)
    if are_loud(shown.values()):
        names = "|".join(re.escape(one.name) for one in shown.values())
        text = _rewritten(rf"(?-i:(?<!\w)(?:{names})(?!\w)|{_LOUD})", lambda one: one[0].lower(), text)
    text = _ADDED.sub(r"\1\2: ", text)
    if verb := _VERB.match(text):
        text = verb[0].capitalize() + text[verb.end() :] + ("" if text.endswith(".") else ".")
    return text.translate(inside)


def _listed(text: str, shown: Mapping[int, Member]) -> str:
    """A list of words of keys and values, as "buffer pool 4G, slow log on", as clauses; as it was if it is none, or
    leaves open which keys are meant."""
    clauses = list[str]()
    for item in re.split(r"(?:[,;]|,? and) ", text.rstrip(".!")):
        found = _ITEM.fullmatch(item)
        said = words_of(found[1]) if found else frozenset()
        keys = [one for one in shown.values() if shared(" ".join(said), words_of(one.name)) == len(said)]
        is_plain = not said or not said.isdisjoint(PLAIN_WORDS | SPOKEN)
        if found is None or is_plain or len(keys) != 1 or not re.match(rf'"?-?\d|{_ON_OR_OFF}', keys[0].json):
            return text
        is_switch = found[2].lower() in ("on", "off")
        clauses.append(f"turn {found[2]} {keys[0].name}" if is_switch else f"set {keys[0].name} to {found[2]}")
    return ", ".join(clauses)


def are_loud(members: Iterable[Member]) -> bool:
    """Whether keys are capitals, as those of variables, and one each in small letters, too."""
    names = [one.name for one in members]
    return all(name.isupper() for name in names) and len({name.lower() for name in names}) == len(names)


def _rewritten(form: str | re.Pattern[str], plain: str | Callable[[re.Match[str]], str], text: str) -> str:
    """A text in which a form is written plainly, but for where it stands in a value."""

    def written(found: re.Match[str]) -> str:
        separator = _SEPARATOR.match(found[0])
        if _VALUED.search(found.string[: found.start()] + (separator[0] if separator else "")):
            return found[0]
        return found.expand(plain) if isinstance(plain, str) else plain(found)

    return re.sub(form, written, text) if isinstance(form, re.Pattern) else re.sub(form, written, text, flags=re.I)


def _switched(found: re.Match[str], shown: Mapping[int, Member], over: Mapping[int, frozenset[str]]) -> str:
    """What is to be on or off, as a value of the one member that it names, `over` which these words stand; as it was if
    there is none."""
    words = words_of(found["what"] or found["named"] or found["which"] or found["also"]) - _MODES
    own = {i: words - over[i] or words for i in shown}
    wanted = (found["state"] or found["how"] or found["verb"] or found["too"]).lower()
    scores = {i: shared(one.name, words) for i, one in shown.items() if str(one.json) in OPPOSITES}
    best = [i for i, score in scores.items() if score == max(scores.values()) > 0]
    best = [i for i in best if shared(" ".join(own[i]), words_of(shown[i].name)) == len(own[i])]
    if len(best) != 1:
        return found[0]
    one = shown[best[0]]
    is_on = wanted in ("on", "enable", "activate")
    value = one.json if OPPOSITES[one.json][1] == is_on else OPPOSITES[one.json][0]
    return f"set {one.name} to {value.strip(chr(34))}"


_SHARES = re.compile(r"(.+?),? respectively(?:,? please)?!?", re.IGNORECASE)
"""Values of which each key has its own."""


def spread(members: Mapping[str, str], instruction: str) -> str:
    """An instruction in plainer words: keys by their names where words of one alone are said ("the retries"), a clause
    for each of several keys that get one value, and "set" and "replace" for other ways to say so."""
    keys = sorted(members, key=len, reverse=True)
    named = "|".join(named_by(key) for key in keys)
    instruction, inside = hidden(on_one_line(instruction), map(json.loads, keys))

    def by_name(found: re.Match[str]) -> str:
        head, words = (found[1], found[2]) if found[2] else (found[3], found[4])
        said = words_of(words)
        meant = [key for key in keys if shared(" ".join(said), words_of(json.loads(key))) == len(said)]
        whole = any(re.fullmatch(named_by(key), words, re.IGNORECASE) for key in keys)
        is_plain = not said or not said.isdisjoint(SPOKEN | PLAIN_WORDS) or max(map(len, said)) < LEAST_NAMED
        return found[0] if whole or is_plain or len(meant) != 1 else f"{head}{json.loads(meant[0])}"

    instruction = _rewritten(_UNNAMED, by_name, instruction)
    for form, plain in _OTHERWISE:
        instruction = _rewritten(form.format(named), plain, instruction)
    one = rf"(?:the )?(?:{named})"
    ones = rf"(?:both )?({one}(?:(?:, (?:and )?| and ){one})+)"
    if found := re.search(rf"\brename {ones} to (?=\S)", instruction, re.IGNORECASE):
        old = re.split(r", (?:and )?| and ", found[1])
        word, part = r"[\w.-]*\w", r"(?:, (?:and )?| and )"
        names = re.compile(rf"{word}(?:{part}{word}){{{len(old) - 1}}}(?=$|[.!,]| and )").match(
            instruction, found.end()
        )
        if names:
            new = zip(old, re.split(part, names[0]), strict=True)
            pairs = ", ".join(f"rename {one} to {other}" for one, other in new)
            instruction = instruction[: found.start()] + pairs + instruction[names.end() :]
    many = re.compile(
        rf"{ASKING}(?:(?:set|change|update|make) {ones} to|{ones} (?:should|must) (?:both |all )?be(?: set to)?) ", re.I
    )
    if found := many.match(instruction):
        value, named_all = instruction[found.end() :].rstrip("."), re.split(r", (?:and )?| and ", found[1] or found[2])
        each = re.split(r", (?:and )?| and ", shares[1]) if (shares := _SHARES.fullmatch(value)) else [value]
        values = each if len(each) == len(named_all) else [value] * len(named_all)
        instruction = ", ".join(f"set {one} to {said}" for one, said in zip(named_all, values, strict=True))
    return instruction.translate(inside)

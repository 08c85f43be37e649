"""Tasks of ordinary sentences: what is asked for stands in the text, splits are apart, judges judge."""

from __future__ import annotations

import json
import re
import runpy
import time
from dataclasses import dataclass
from datetime import date, datetime
from enum import Enum
from itertools import islice, pairwise
from random import Random

import pytest
from pydantic import BaseModel
from tests.helpers import ROOT, python

from redraft import prompts
from redraft.constraints.schemas import plain_schema
from redraft.numerals import spelled
from redraft.prompts import Field
from redraft.tasks import Example, Extract, Task, task
from redraft.tasks.clock import draw_date, draw_time
from redraft.tasks.extract import judge
from redraft.tasks.locales import is_abroad, language_of, locales
from redraft.tasks.sentences import common_roles, compose, domains, expand, roles, roles_of, shares, write
from redraft.tasks.strings import FREE, scramble
from redraft.tasks.task import split_of
from redraft.tasks.values import KINDS, WORDS, draw, likeness
from redraft.tune.vocabulary import build_tokenizer

PLAIN = ("extract", "extract-short", "extract-lists", "forms", "forms-long", "edit", "mend", "fill", "copy")
TASKS = [task(name) for name in PLAIN]


def some(task: Task, count: int = 150, split: str = "train", seed: int = 3) -> list[Example]:
    return list(islice(task.examples(split, seed), count))


@pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
def test_a_right_answer_is_exact_and_another_examples_is_not(task: Task) -> None:
    examples = some(task)
    assert examples == some(task)
    assert all(task.score(example, example.answer).exact for example in examples)
    others = pairwise(examples)
    assert not any(task.score(one, other.answer).exact for one, other in others if one.answer != other.answer)
    for odd in ("", "{", "null", '{"a":1}', "[[[", "\x00"):
        assert not task.score(examples[0], odd).exact


def test_examples_are_the_same_in_every_process() -> None:
    """A set of strings has another order in each process: fillings differed from run to run."""
    drawn = (
        "from itertools import islice; from redraft.tasks import task;"
        f"print([list(islice(task(name).examples('train', 3), 150)) for name in {PLAIN}])"
    )
    found = [python(drawn, PYTHONHASHSEED=seed) for seed in ("1", "2")]
    assert found[0].stdout, found[0].stderr
    assert found[0].stdout == found[1].stdout


@pytest.mark.parametrize("many", [False, True])
def test_strings_that_are_asked_for_stand_in_the_text(many: bool) -> None:
    for example in some(Extract(many), 400):
        head, _, text = example.prompt.partition("\n")
        kinds = dict(re.findall(r"(?:^|, |: )([\w ]+?)(?: \(([^)]*)\))?(?=, |$)", head))
        answer = json.loads(example.answer)
        for record in answer if many else [answer]:
            assert list(record) == list(kinds)
            for name, kind in kinds.items():
                if kind == "" and record[name] is not None:
                    assert record[name] in text, example


def test_any_value_of_a_text_is_asked_for_among_choices_now_and_then() -> None:
    """A stranger's choices are no role's: "by sea" with `mode (air|sea|road)`, in whatever case."""
    given = {role.choices for role in roles().values() if role.kind == "enum"}
    found = cased = 0
    for example in some(Extract(), 600):
        head, _, text = example.prompt.partition("\n")
        for name, kind in re.findall(r"(?:^|, |: )([\w ]+?) \(([^()]*\|[^()]*)\)", head):
            choices, value = kind.split("|"), json.loads(example.answer)[name]
            assert len(choices) == len({each.lower() for each in choices}) > 1
            assert value is None or value in choices
            if tuple(choices) not in given and value is not None:
                found += 1
                cased += value not in text
                assert value.casefold() in text.casefold() or value.upper() in text.upper(), example
    assert found > 60
    assert cased > 10
    assert not any(re.search(r"{{\w+: [^{}]*\|", example.prompt) for example in some(task("fill"), 200))


@pytest.mark.parametrize("kind", [*FREE, *WORDS])
def test_free_values_belong_to_their_split(kind: str) -> None:
    for split in ("train", "held_out"):
        assert all(split_of(draw(kind, Random(seed), split).text) == split for seed in range(20))


@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_a_value_is_json(kind: str) -> None:
    for seed in range(40):
        value = draw(kind, Random(seed), "train")
        for form in value.forms.values():
            assert isinstance(json.loads(form), str | int | float | list)
        if "integer" in value.forms:
            assert isinstance(json.loads(value.forms["integer"]), int)


def test_every_slot_has_a_role_and_no_mark_is_left() -> None:
    rng = Random(5)
    for sentences in domains().values():
        for sentence in sentences:
            assert roles_of(sentence) <= roles().keys()
            text = write(expand(sentence, rng), rng, "train").text
            assert "{" not in text
            assert not re.search(r"\[ |<\w+\|", text), text


def test_a_noun_of_the_text_names_its_field() -> None:
    form = expand("The @1:relative is $1:person and the ~2:pair is $2:code.", Random(4))
    first, second = re.findall(r"\{(\w+?)__(\w+)\}", form)
    assert (first[0], second[0]) == ("person", "code")
    head, tail = second[1].split("_")
    text = write(form, Random(4), "train").text
    assert re.sub(r"\W+", "_", text).lower().startswith(f"the_{first[1]}_is_")
    assert f" the {tail} of the {head} is " in text
    assert roles()["code__door_code"].names[-2:] == ("door_code", "code")
    with pytest.raises(KeyError):
        roles()["nobody"]


def test_every_role_stands_once_and_its_kind_is_known() -> None:
    files = (ROOT / "src/redraft/tasks/plain").glob("roles*.txt")
    lines = [line for file in files for line in file.read_text(encoding="utf-8").splitlines()]
    names = [line.split()[0] for line in lines if line.strip() and not line.startswith("#")]
    assert len(names) == len(set(names)) > 3000
    for role in roles().values():
        if role.kind not in ("boolean", "enum"):
            assert draw(role.kind, Random(1), "train").forms


def test_a_number_within_bounds_keeps_them() -> None:
    drawn = {int(draw("count:3-7", Random(seed), "train").text) for seed in range(100)}
    assert drawn == {3, 4, 5, 6, 7}
    assert likeness("count:3-7") == likeness("count_de") == "count"
    assert likeness("status_code") == "status_code"
    with pytest.raises(KeyError):
        draw("goods_xx", Random(1), "train")


@pytest.mark.parametrize("language", sorted(locales()))
def test_values_of_other_languages_are_what_they_say(language: str) -> None:
    months, rng = locales()[language]["months"], Random(language)
    for _ in range(60):
        day = draw(f"date_{language}", rng, "train")
        if "date" in day.forms:
            found = date.fromisoformat(json.loads(day.forms["date"]))
            numbers = {int(number) for number in re.findall(r"\d+", day.text)}
            assert {found.day, found.year} <= numbers
            assert found.month in numbers or months[found.month - 1] in day.text
        moment = draw(f"time_{language}", rng, "train")
        hour, minute = map(int, json.loads(moment.forms["time"]).split(":"))
        said = [int(number) for number in re.findall(r"\d+", moment.text)]
        assert said[0] in (hour, hour - 12)
        assert said[1:] == [minute] or (minute == 0 and len(said) == 1)
        price = draw(f"price_{language}", rng, "train")
        assert re.sub(r"\D", "", price.text) == price.forms["number"].replace(".", "")
        assert draw(f"person_{language}", rng, "train").text
        assert int(draw(f"small_{language}", rng, "train").forms["integer"]) <= 12
        assert int(draw(f"count_{language}", rng, "train").forms["integer"]) > 1


def test_a_text_is_of_one_language_and_field_names_of_texts_of_none_are_english() -> None:
    foreign = [name for name in domains() if language_of(name)]
    assert len({language_of(name) for name in foreign}) == len(locales())
    assert all(role.names[0].isascii() and not is_abroad(role.kind) for role in common_roles())
    share = sum(each for each, name in zip(shares(), domains(), strict=True) if language_of(name)) / sum(shares())
    assert 0.05 < share < 0.12


def test_a_date_and_a_time_are_called_so_beside_each_other() -> None:
    """Their names were taken from both as too general, so nano had never been asked for the two."""
    asked = {example.prompt.partition("\n")[0] for example in some(Extract(), 6000)}
    assert any(re.search(r"\bdate\b", head) and re.search(r"\btime\b", head) for head in asked)


def test_two_slots_of_a_text_can_be_separated() -> None:
    for seed in range(200):
        made, _ = compose(Random(seed), "train")
        held = list(made.values)
        assert len(held) == len(set(held))


def test_dates_and_times_are_what_they_say() -> None:
    """Against Python's own reading of the formats that it knows."""
    formats = ("%d %B %Y", "%B %d, %Y", "%d.%m.%Y", "%Y/%m/%d", "%d %b %Y", "%b %d, %Y", "%A, %d %B %Y", "%Y-%m-%d")
    read = 0
    for seed in range(400):
        drawn = draw_date(Random(seed))
        for form in formats:
            try:
                meant: date = datetime.strptime(drawn.text, form).date()
            except ValueError:
                continue
            assert json.loads(drawn.forms["date"]) == meant.isoformat()
            read += 1
        drawn = draw_time(Random(seed))
        for form in ("%I:%M %p", "%I %p", "%I:%M%p", "%I%p"):
            try:
                clock = datetime.strptime(drawn.text.replace(".", ""), form).time()
            except ValueError:
                continue
            assert json.loads(drawn.forms["time"]) == clock.strftime("%H:%M")
            read += 1
    assert read > 300


def test_numbers_in_words() -> None:
    known = {
        0: "zero",
        13: "thirteen",
        20: "twenty",
        47: "forty-seven",
        100: "one hundred",
        319: "three hundred and nineteen",
    }
    assert {number: spelled(number) for number in known} == known


def test_judge_counts_fields() -> None:
    wanted = {"a": "x", "n": 12.5, "b": None}
    assert judge(wanted, {"a": "x", "n": 12.50, "b": None}) == 1.0
    assert judge(wanted, {"a": "x", "n": 12.5}) == pytest.approx(2 / 3)
    assert judge(wanted, "x") == 0.0
    assert judge([wanted, wanted], [wanted]) == 0.5
    assert judge([wanted], [wanted, wanted]) == 0.0
    assert judge({"a": True}, {"a": 1}) == 0.0


def test_prompts_are_made_of_a_schema() -> None:
    record = {
        "type": "object",
        "properties": {
            "who": {"type": "string"},
            "qty": {"type": ["integer", "null"]},
            "due": {"type": "string", "format": "date"},
            "state": {"enum": ["open", "closed"]},
            "tags": {"type": "array", "items": {"type": "string"}},
            "note": {"anyOf": [{"type": "null"}, {"type": "number"}]},
        },
    }
    found = prompts.fields_of(record)
    assert found is not None
    fields, many = found
    assert not many
    asked = prompts.extract(fields, "Send 3 apples.")
    named = "who, qty (integer), due (date), state (open|closed), tags (list), note (number)"
    assert asked == f"Extract as JSON: {named}\nSend 3 apples."
    assert prompts.fields_of({"type": "array", "items": record}) == (fields, True)
    assert prompts.fields_of({"type": "string"}) is None
    assert prompts.extract([Field("a")], "x", many=True) == "Extract as JSON list: a\nx"


class Size(Enum):
    """Of an order."""

    SMALL = "S"
    LARGE = "L"


@dataclass
class Line:
    """Of an order."""

    item: str
    qty: int


@dataclass
class Order:
    """A record with others inside."""

    who: str
    size: Size
    lines: list[Line]
    spare: Line | None


class Bought(BaseModel):
    """The same, as pydantic writes it down."""

    who: str
    size: Size
    lines: list[Line]
    spare: Line | None


def test_references_are_asked_for_as_what_they_lead_to() -> None:
    asked = (
        "Extract as JSON: who, size (S|L), lines (list: item, qty (integer)), spare (object: item, qty (integer))\nx"
    )
    for kind in (Order, Bought):
        schema = plain_schema(kind)
        assert "$ref" in json.dumps(schema)
        assert prompts.of_schema(schema, "x") in (asked, asked.replace("S|L", "L|S")), "an Enum has no order"
    older = {
        "$ref": "#/definitions/a~1b",
        "definitions": {"a/b": {"properties": {"s": {"allOf": [{"$ref": "#/x/0"}]}}}},
    }
    assert prompts.of_schema(older | {"x": [{"enum": ["S", "M"]}]}, "x") == "Extract as JSON: s (S|M)\nx"
    record = {"properties": {"a": {"$ref": "#/$defs/A"}, "b": {"$ref": "other.json"}}}
    assert prompts.of_schema({"type": "array", "items": {"$ref": "#/$defs/R"}, "$defs": {"R": record}}, "x") == (
        "Extract as JSON list: a, b\nx"
    )


def test_references_that_lead_back_or_to_too_much_have_an_end() -> None:
    tree = {"type": "object", "properties": {"name": {}, "below": {"type": "array", "items": {"$ref": "#"}}}}
    assert prompts.of_schema(tree, "x") == "Extract as JSON: name, below (list)\nx"
    loops = {"a": {"$ref": "#/$defs/a"}, "b": {"anyOf": [{"$ref": "#/$defs/b"}]}}
    asked = prompts.of_schema({"properties": {"a": loops["a"], "b": loops["b"]}, "$defs": loops}, "x")
    assert asked == "Extract as JSON: a, b\nx"
    wide = {
        f"{i}": {"type": "object", "properties": {f"p{j}": {"$ref": f"#/{i + 1}"} for j in range(40)}}
        for i in range(20)
    }
    assert len(prompts.of_schema(wide["0"] | wide, "x")) < 600
    address = {"type": "object", "properties": {f"line {i}": {"type": "string"} for i in range(9)}}
    party = {"type": "object", "properties": {f"address {i}": {"$ref": "#/$defs/address"} for i in range(3)}}
    parties = {f"party {i}": {"$ref": "#/$defs/party"} for i in range(5)}
    invoice = {"properties": parties, "$defs": {"party": party, "address": address}}
    assert prompts.of_schema(invoice, "x").startswith("Extract as JSON: party 0 (object: address 0 (object), address 1")
    assert len(prompts.of_schema(invoice, "x")) < 600
    far = {"properties": {f"f{i}": {"$ref": "#" + "/a" * 15_000} for i in range(1_250)}}
    began = time.monotonic()
    prompts.of_schema(far, "x")
    assert time.monotonic() - began < 1
    long = {"properties": {f"f{i}": {"$ref": "#/x"} for i in range(500)}, "x": {"enum": ["y" * 20_000]}}
    assert prompts.of_schema(long, "x") == "x"


def test_a_value_has_the_same_tokens_in_a_sentence_and_in_the_answer() -> None:
    tokenizer = build_tokenizer("plain")
    for seed in range(300):
        value = scramble(Random(seed))
        alone = tokenizer.encode(value, add_special_tokens=False).ids
        for around in ("Ask {} now.", "It is {}, or", '{{"name":"{}","x":1}}', '{{"a":"{}"}}'):
            whole = tokenizer.encode(around.format(value), add_special_tokens=False)
            assert tokenizer.decode(whole.ids) == around.format(value)
            at = around.format(value).index(value)
            inside = [i for i, (low, high) in zip(whole.ids, whole.offsets, strict=True) if at <= low < at + len(value)]
            assert inside == alone


def test_what_is_written_by_hand_holds_what_it_asks_for() -> None:
    bench = runpy.run_path(str(ROOT / "bench" / "plain.py"))
    count = {}
    for group in ("phrasings", "strangers", "newcomers"):
        rows = list(bench["written"](ROOT / "tests" / "data" / f"{group}.txt"))
        count[group] = len({row.prompt for row in rows})
        for row in rows:
            text = row.prompt.partition("\n")[2]
            schema = bench["schema_of"](row.prompt)
            answer = json.loads(row.answer)
            assert list(schema["properties"]) == list(answer)
            for name, value in answer.items():
                kind = schema["properties"][name]
                if isinstance(value, str) and "enum" not in kind and f"{name} (" not in row.prompt:
                    assert value in text, row
    assert count["phrasings"] >= 200
    assert (count["strangers"], count["newcomers"]) == (50, 36)

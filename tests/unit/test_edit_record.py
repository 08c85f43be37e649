"""Files of settings edited as records: what comes out is read by the format's own parser, and all else is as it was."""

from __future__ import annotations

import configparser
import json
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.helpers import Shell

import redraft
from redraft.operations.edit_record import MOST_CHARACTERS, record_of

JSON = '{\n  "host": "localhost",\n  "port": 8080,\n  "tags": ["a", "b"],\n  "inner": {\n    "debug": true\n  }\n}\n'
TOML = '# the server\n[server]\nhost = "localhost"\nport = 8080\n\n[pool]\nsize = 5\n'
YAML = "service:\n  name: web\n  image: nginx:1.25\n  replicas: 3\n  # kept\n  debug: false\n"
INI = "[mail]\nserver = smtp.example.com\nport = 25\n"
ENV = "export DB_HOST=localhost\nDB_PORT=5432\nDEBUG=true\n"


def changed(text: str, instruction: str, answer: str) -> str:
    """What a model's answer makes of lines."""
    record = record_of(text, instruction)
    assert record is not None
    after = record.after(answer)
    assert after is not None
    return after


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (JSON, {"host": "localhost", "port": 8080, "debug": True}),
        (TOML, {"host": "localhost", "port": 8080, "size": 5}),
        (YAML, {"name": "web", "image": "nginx:1.25", "replicas": 3, "debug": False}),
        (INI, {"server": "smtp.example.com", "port": 25}),
        (ENV, {"DB_HOST": "localhost", "DB_PORT": 5432, "DEBUG": True}),
        ('{"a": 1.10, "b": null}', {"a": 1.1, "b": None}),
        ('"port": 8080,', {"port": 8080}),
    ],
)
def test_members_are_shown_as_one_record_and_stay_if_nothing_changed(text: str, shown: dict[str, Any]) -> None:
    record = record_of(text, "say something")
    assert record is not None
    assert json.loads(record.text) == shown
    assert record.after(record.text) == text


@pytest.mark.parametrize(
    "text",
    [
        "def f(x):\n    return 3\n",
        "Dear Ada,\nsend 3 apples.",
        '{"who": "Ada"}\n{"who": "Bo"}',
        "",
        "# nothing",
        '{"a": {"b": 1}}',
        "[1, 2]",
        "a: 1\na: 2",
        "x" * (MOST_CHARACTERS + 1),
        "a=1\n" + " " * 1000 + "x y",
    ],
)
def test_other_lines_are_no_record(text: str) -> None:
    assert record_of(text, "Set a to 3.") is None


def test_each_form_is_written_as_its_own_parser_reads_it() -> None:
    after = changed(JSON, "port, debug", '{"host":"localhost","port":9090,"debug":false}')
    assert json.loads(after) == json.loads(JSON) | {"port": 9090, "inner": {"debug": False}}
    after = changed(JSON, "Add user ada, remove debug", '{"host":"localhost","port":8080,"user":"ada"}')
    assert json.loads(after) == {"host": "localhost", "port": 8080, "tags": ["a", "b"], "inner": {"user": "ada"}}
    after = changed(TOML, "host, port", '{"host":"example.com","port":"9090","size":5}')
    assert tomllib.loads(after) == {"server": {"host": "example.com", "port": 9090}, "pool": {"size": 5}}
    assert after.startswith("# the server\n")
    after = changed(INI, "server, user", '{"server":"mail.example.com","port":25,"user":"ada"}')
    read = configparser.ConfigParser()
    read.read_string(after)
    assert dict(read["mail"]) == {"server": "mail.example.com", "port": "25", "user": "ada"}
    assert changed(ENV, "DB_HOST", '{"DB_HOST":"db","DB_PORT":5432,"DEBUG":true}') == ENV.replace("localhost", "db")
    assert changed(YAML, "debug", '{"name":"web","image":"nginx:1.25","replicas":3,"debug":true}') == YAML.replace(
        "false", "true"
    )


def test_what_an_instruction_does_not_speak_of_stays() -> None:
    """nano changed "^18.2.0" while it set the version."""
    wrong = '{"host":"lokalhost","port":9090,"debug":false}'
    assert changed(JSON, "Set port to 9090.", wrong) == JSON.replace("8080", "9090")
    assert json.loads(changed(JSON, "Make it so.", wrong))["host"] == "lokalhost", "where no key is named"
    other = '{"host":"localhost","port":8080,"debgu":true}'
    assert changed(JSON, "Set port to 8080.", other) == JSON, "a key that nobody said"


def test_keys_are_renamed_in_their_place_and_commas_follow() -> None:
    one = '{"a": 1, "b": "x", "c": true}'
    assert changed(one, "Rename b to d", '{"a":1,"d":"x","c":true}') == '{"a": 1, "d": "x", "c": true}'
    assert changed(one, "Remove c", '{"a":1,"b":"x"}') == '{"a": 1, "b": "x"}'
    assert changed(one, "Remove a", '{"b":"x","c":true}') == '{"b": "x", "c": true}'
    assert changed(one, "Remove a, b and c", "{}") == "{}"
    assert changed(one, "Add e", '{"a":1,"b":"x","c":true,"e":null}') == '{"a": 1, "b": "x", "c": true, "e": null}'
    assert changed('"port": 1,', "Add host", '{"port":1,"host":"h"}') == '"port": 1,\n"host": "h",'
    record = record_of("port: 1", "Add host", lead="  ")
    assert record is not None
    assert record.after('{"port":1,"host":"h"}') == "port: 1\n  host: h"


@pytest.mark.parametrize("answer", ["", "[1]", '{"a": {"b": 1}}', '{"a": [1]}', "{", '{"two words": 1}'])
def test_an_answer_that_cannot_be_written_is_none(answer: str) -> None:
    record = record_of("a: 1", "Say two words")
    assert record is not None
    assert record.after(answer) is None


scalars = st.none() | st.booleans() | st.integers() | st.text(max_size=6)
members = st.dictionaries(st.text("abcdef", min_size=1, max_size=4), scalars, min_size=1, max_size=6)


@given(before=members, after=members, indent=st.sampled_from([None, 2]))
def test_a_changed_object_is_json_again(before: dict[str, Any], after: dict[str, Any], indent: int | None) -> None:
    """Read by Python's own parser; a value keeps its type where it was a number or text."""
    text = json.dumps(before, indent=indent, ensure_ascii=False)
    said = " ".join([*before, *after])
    record = record_of(text, said)
    if record is None:  # brackets within texts
        return
    made = record.after(json.dumps(after))
    assert made is not None
    found = json.loads(made)
    assert found.keys() == after.keys()
    assert all(str(found[key]) == str(value) for key, value in after.items())


def test_of_many_members_those_are_shown_that_are_meant() -> None:
    text = "\n".join(f"key_{chr(97 + i) * 2}: {i}" for i in range(20))
    record = record_of(text, "Set key_kk to 7, Set key_tt to 8")
    assert record is not None
    assert {"key_kk", "key_tt"} <= json.loads(record.text).keys()
    assert len(json.loads(record.text)) == 8


def test_hostile_lines_take_no_time() -> None:
    began = time.monotonic()
    for line in ('"' + "\\" * 60_000, " " * 60_000 + "x", "a" * 60_000, 'a="' + " " * 60_000, "a: 1\n" * 13_000):
        record_of(line, "a" * 1000)
    assert time.monotonic() - began < 5


@pytest.mark.parametrize(
    ("text", "instruction", "wanted"),
    [
        (JSON, "Set port to 9090.", JSON.replace("8080", "9090")),
        (JSON, "Rename host to server.", JSON.replace('"host"', '"server"')),
        (TOML, "The host is now example.com.", TOML.replace("localhost", "example.com")),
        (TOML, "Set size to 10", TOML.replace("5", "10")),
        (YAML, "Set image to nginx:1.27", YAML.replace("1.25", "1.27")),
        (YAML, "Remove debug.", YAML.replace("  debug: false\n", "")),
        (INI, "Set port to 587.", INI.replace("25", "587")),
        (ENV, "DEBUG=false", ENV.replace("true", "false")),
    ],
)
def test_nano_edits_files_of_settings(text: str, instruction: str, wanted: str) -> None:
    done = redraft.load("nano").edit(text, (0, len(text)), instruction=instruction, seed=1)
    assert done.text == wanted


def test_the_command_takes_a_file_alone(tmp_path: Path, shell: Shell) -> None:
    file = tmp_path / "settings.toml"
    file.write_text(TOML)
    shell(["edit", str(file), "--seed", "1", "--instruction", "Set port to 9090.", "--write"])
    assert file.read_text() == TOML.replace("8080", "9090")
    said = shell(["edit", f"{file}x", "--instruction", "Set port to 9090."], 2).err
    assert "write a file and its lines" in said

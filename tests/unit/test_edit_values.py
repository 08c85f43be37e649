"""What people write of settings files, and what becomes of them without a model: the whole text, and what is left out.

Wanted texts are written by hand; most of these instructions changed something else once, without a word.
"""

from __future__ import annotations

import pytest

import redraft
from redraft.constraints.compile.limits import DEFAULT_LIMITS
from redraft.operations.edit_language import edited
from redraft.operations.edit_record import record_of, turns_of
from redraft.operations.edit_values import Stated, stated

ENV = "APP_ENV=staging\nPORT=3000\nLOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=3\nTIMEOUT=30s\nDEBUG=false\n"
YAML = "host: localhost\nport: 8080\ndebug: false\nworkers: 4\nbanner: Hello there\n"
TOML = '[server]\nhost = "a"\nport = 80\n\n[database]\nhost = "b"\nport = 5432\nmaxConnections = 10\n'
PACKAGE = '{\n  "name": "shop",\n  "version": "2.3.1",\n  "dependencies": {\n    "express": "^4.18.2"\n  }\n}\n'
UNIT = "[Service]\nExecStart=/usr/bin/worker --verbose\nRestart=always\n"
JAVA = "shop.greeting=Hello\nshop.port=80\n"
SWITCHES = "display_errors = Off\nexpose_php = On\n"
BARE = "[mysqld]\nskip-name-resolve\nport = 3306\n"
PHP = "display_errors = Off\nmemory_limit = 128M\n"


def made_of(text: str, instruction: str) -> tuple[str | None, tuple[str, ...]]:
    """What an instruction makes of lines, None where a model is to be asked, and what it leaves out."""
    record = record_of(text, instruction)
    assert record is not None
    asked = record.asked(instruction)
    source = edited(record.text, asked)
    assert source is not None
    sole = source.compile(DEFAULT_LIMITS).dfa.trimmed().sole
    if sole is None:
        return None, ()
    return record.after(sole.decode()), record.left_out(asked, sole.decode())


@pytest.mark.parametrize(
    ("text", "instruction", "old", "new"),
    [
        (ENV, "Please set the log level to debug.", "info", "debug"),
        (ENV, "Could you set port to 8081?", "3000", "8081"),
        (ENV, "set port to 8081 (3000 is taken)", "3000", "8081"),
        (ENV, "Set the retries to 10", "=3\n", "=10\n"),
        (ENV, "set the timeout to 45s?", "30s", "45s"),
        (ENV, "point the api url at https://api.example.com", "http://localhost:4000", "https://api.example.com"),
        (ENV, "Use https instead of http for the API url", "http:", "https:"),
        (ENV, "switch debug on", "false", "true"),
        (YAML, "set the host as web1", "localhost", "web1"),
        (YAML, "assign web1 to host", "localhost", "web1"),
        (YAML, "give host the value web1", "localhost", "web1"),
        (YAML, "set port equal to 80", "8080", "80"),
        (YAML, "use 8081 as the port", "8080", "8081"),
        (YAML, "change port 8080 to 8081", "8080", "8081"),
        (YAML, "port should be 9000", "8080", "9000"),
        (YAML, "Set the host to web1 as requested", "localhost", "web1"),
        (YAML, "Set host to web1, the old one is gone", "localhost", "web1"),
        (YAML, "Set the banner to: Down for maintenance", "Hello there", "Down for maintenance"),
        (YAML, "set the banner to Welcome for all new users", "Hello there", "Welcome for all new users"),
        (YAML, "Change the banner from Hello there to Bye now", "Hello there", "Bye now"),
        (YAML, "Set port to 80. Set port to 81.", "8080", "81"),
        (YAML, "1. Set host to web1\n2. Set port to 80", "localhost\nport: 8080", "web1\nport: 80"),
        (TOML, "Set database.port to 5433", "5432", "5433"),
        (TOML, "the server's port should be 81", "= 80\n", "= 81\n"),
        (TOML, "Set the max connections to 20", "= 10\n", "= 20\n"),
        (PACKAGE, "bump the express version to ^5.0.0", "^4.18.2", "^5.0.0"),
        (UNIT, "Set ExecStart to /usr/bin/worker --quiet", "--verbose", "--quiet"),
        (UNIT, "Set ExecStart to /usr/bin/worker --a=1 --b=2", "--verbose", "--a=1 --b=2"),
        (JAVA, "Set shop.greeting to Good morning", "=Hello", "=Good morning"),
        (PHP, "turn display_errors on", "Off", "On"),
        (SWITCHES, "turn display_errors on and expose_php off", "Off\nexpose_php = On", "On\nexpose_php = Off"),
        (BARE, "Set port to 3307", "3306", "3307"),
        (
            YAML,
            "workers goes to 8 and port goes to 80",
            "8080\ndebug: false\nworkers: 4",
            "80\ndebug: false\nworkers: 8",
        ),
    ],
)
def test_what_is_clear_is_done(text: str, instruction: str, old: str, new: str) -> None:
    assert made_of(text, instruction) == (text.replace(old, new, 1), ())


MYSQL = "[mysqld]\ninnodb_buffer_pool_size = 128M\nmax_connections = 151\nslow_query_log = 0\nlong_query_time = 10\n"
LEVELS = "[Service]\nEnvironment=LOG_LEVEL=info\nRestart=always\nstop-minutes=15\n"
FLIPPED = '{\n  "strict": true,\n  "noImplicitAny": true,\n  "sourceMap": false\n}\n'
ON = '{\n  "strict": false,\n  "noImplicitAny": false,\n  "sourceMap": true\n}\n'
FRAMED = (
    "flour: 250 g\nimage: registry.example.com/web:1.8.3\ntag: v1.0\nsize: 10MB\nurl: https://app.example.com\n"
    "closes: 14:00 CET\ncpu: 500m\nshare: 0.75\nupstream: backend:8080\nbeta: 2.0beta\n"
    "status: open\nday: 2026-05-04\nat: 09:30\n"
)
POST = '{\n  "title": "Hi there",\n  "hosts": 3,\n  "debug": true,\n  "name": "web",\n  "note": "a b"\n}\n'
REDIS = '[server]\nhost = "a"\ntitle = "Hi there"\n\n[redis]\nport = 5  # as agreed\nnode = "n"\n'


@pytest.mark.parametrize(
    ("text", "instruction", "old", "new"),
    [
        (POST, 'set title to "x; remove debug"', "Hi there", "x; remove debug"),
        (POST, "set title to `x; remove debug`", "Hi there", "x; remove debug"),
        (POST, "set title to “x; remove debug”", "Hi there", "x; remove debug"),
        (
            POST,
            'set title to "A. Set hosts to 9." and hosts to 4',
            'Hi there",\n  "hosts": 3',
            'A. Set hosts to 9.",\n  "hosts": 4',
        ),
        (POST, 'set title to "Bread and name to keep"', "Hi there", "Bread and name to keep"),
        (POST, 'add remark: "x, remove debug"', '"a b"', '"a b",\n  "remark": "x, remove debug"'),
        (POST, 'set title to "lamp, turn off debug"', "Hi there", "lamp, turn off debug"),
        (POST, 'replace "Hi there" with "Bye, and set hosts to 9"', "Hi there", "Bye, and set hosts to 9"),
        (POST, "set title to Works with 2 hosts", "Hi there", "Works with 2 hosts"),
        (POST, "set note to use x as title", "a b", "use x as title"),
        (POST, "set title to known as note", "Hi there", "known as note"),
        (POST, "set title to please disable debug", "Hi there", "please disable debug"),
        (POST, "set name to Jo;", "web", "Jo"),
        (POST, "set hosts to 90;", "3", "90"),
        (POST, "name => Jo", "web", "Jo"),
        (POST, "hosts -> 4", "3", "4"),
        (POST, "Change title to Wait...", "Hi there", "Wait..."),
        (POST, "remove name and add age: 5", '"name": "web",\n  "note": "a b"', '"note": "a b",\n  "age": 5'),
        (REDIS, 'set title to "my redis port"', "Hi there", "my redis port"),
        (REDIS, "set title to Server host", "Hi there", "Server host"),
        (REDIS, "set title to x, redis port to 7", 'Hi there"\n\n[redis]\nport = 5', 'x"\n\n[redis]\nport = 7'),
        (REDIS, "set port to 7 in the redis section", "= 5", "= 7"),
        (
            "port: 80  # of HTTP\nname: x\n",
            "remove port and add size: 3",
            "port: 80  # of HTTP\nname: x",
            "name: x\nsize: 3",
        ),
        ('{"a":1,"tags":["x",{"y":1}],"b":2}', "set a to 2", '"a":1', '"a":2'),
    ],
)
def test_no_word_of_a_value_is_an_instruction(text: str, instruction: str, old: str, new: str) -> None:
    """Signs and verbs in quotes ended values, and what stood behind them was carried out."""
    assert made_of(text, instruction) == (text.replace(old, new, 1), ())


@pytest.mark.parametrize(
    ("text", "instruction", "old", "new"),
    [
        (
            MYSQL,
            "buffer pool 4G, connections 250, slow log on",
            "128M\nmax_connections = 151\nslow_query_log = 0",
            "4G\nmax_connections = 250\nslow_query_log = 1",
        ),
        (MYSQL, "long query time 5", "= 10", "= 5"),
        (MYSQL, "no max_connections change, only long_query_time to 5", "= 10", "= 5"),
        (MYSQL, "don't change max_connections, only set long_query_time to 5", "= 10", "= 5"),
        (UNIT, "make ExecStart run /usr/bin/worker instead of this", "/usr/bin/worker --verbose", "/usr/bin/worker"),
        (LEVELS, "set LOG_LEVEL to debug", "LOG_LEVEL=info", "LOG_LEVEL=debug"),
        (LEVELS, "set stop-minutes to 30 minutes", "15", "30"),
        (YAML, "use web1 for host", "localhost", "web1"),
        (
            YAML,
            "use web1 for host and 9 for workers",
            "localhost\nport: 8080\ndebug: false\nworkers: 4",
            "web1\nport: 8080\ndebug: false\nworkers: 9",
        ),
        (
            YAML,
            "set port to 80 and banner to Hi",
            "8080\ndebug: false\nworkers: 4\nbanner: Hello there",
            "80\ndebug: false\nworkers: 4\nbanner: Hi",
        ),
        (
            ENV,
            "set port to 1 and the retries to 9",
            "3000\nLOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=3",
            "1\nLOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=9",
        ),
        (YAML, "set banner to: port=5", "Hello there", "port=5"),
        (YAML, "set host to web1; do not touch the workers; banner stays", "localhost", "web1"),
        (PACKAGE, "bump express to ^5.0.0 pls", "^4.18.2", "^5.0.0"),
        (ENV, "set LOG_LEVEL to warn; do not touch DEBUG; PORT stays", "info", "warn"),
        (
            ENV,
            "Remove DEBUG and rename LOG_LEVEL to LEVEL",
            "LOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=3\nTIMEOUT=30s\nDEBUG=false\n",
            "LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=3\nTIMEOUT=30s\n",
        ),
        (ENV, "get rid of DEBUG and of TIMEOUT", "TIMEOUT=30s\nDEBUG=false\n", ""),
        (POST, "add a script called lint that runs eslint .", '"a b"', '"a b",\n  "lint": "eslint ."'),
        (YAML, "Set port to 80, and keep everything else the same", "8080", "80"),
        (YAML, "Can you set workers to 8? Thanks", "4", "8"),
        (YAML, "the defaults: port=80, workers=8", "8080\ndebug: false\nworkers: 4", "80\ndebug: false\nworkers: 8"),
        (
            ENV,
            "PORT and MAX_RETRIES should be 5",
            "3000\nLOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=3",
            "5\nLOG_LEVEL=info\nAPI_URL=http://localhost:4000\nMAX_RETRIES=5",
        ),
        (
            ON,
            "enable strict and noImplicitAny, disable sourceMap",
            'false,\n  "noImplicitAny": false,\n  "sourceMap": true',
            'true,\n  "noImplicitAny": true,\n  "sourceMap": false',
        ),
        (ON, "add a key called start with node index.js", "true\n", 'true,\n  "start": "node index.js"\n'),
        (FRAMED, "Bump image to 1.9.0", "web:1.8.3", "web:1.9.0"),
        (FRAMED, "set flour to 300", "250 g", "300 g"),
        (FRAMED, "set size to 20", "10MB", "20MB"),
        (FRAMED, "bump the tag to 1.1", "v1.0", "v1.1"),
        (FRAMED, "set tag to v2.0", "v1.0", "v2.0"),
        (FRAMED, "set url to beta.example.com", "app.example", "beta.example"),
        (FRAMED, "set closes to 15:00", "14:00 CET", "15:00 CET"),
        (FRAMED, "set cpu to 1", "500m", '"1"'),
        (FRAMED, "set share to 80%", "0.75", "0.8"),
        (FRAMED, "status should be archived", "open", "archived"),
        (YAML, "port should be increased to 90", "8080", "90"),
        (FRAMED, "set size to 1.5GB", "10MB", "1.5GB"),
        (FRAMED, "set upstream to 10.0.0.5", "backend:8080", "10.0.0.5"),
        (FRAMED, "set upstream to 8081", "backend:8080", "backend:8081"),
        (FRAMED, "set beta to 2.0", "2.0beta", '"2.0"'),
        (FRAMED, "status should be resolved", "open", "resolved"),
        (YAML, "debug should be turned on", "false", "true"),
        (YAML, "set debug to 1", "false", "true"),
        (YAML, "Change port from 8080 to 81", "8080", "81"),
        (POST, "rename title and name to heading and label", '"title"', '"heading"'),
        (
            YAML,
            "rename host and port to server and gate, and set debug to true",
            "host: localhost\nport: 8080\ndebug: false",
            "server: localhost\ngate: 8080\ndebug: true",
        ),
    ],
)
def test_what_a_second_reader_wrote_is_done(text: str, instruction: str, old: str, new: str) -> None:
    made, left_out = made_of(text, instruction)
    wanted = text.replace(old, new, 1).replace('"name"', '"label"' if "and label" in instruction else '"name"')
    assert (made, [one for one in left_out if "change" not in one]) == (wanted, [])


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        (YAML, "Set host to web1, but only after the migration"),
        (YAML, "Set banner to Hi unless there is one"),
        (YAML, "set port to 80 but only in staging"),
        (YAML, "Change the banner to Ring the bell, please, and mark it paid"),
        (ENV, "API_URL should use https"),
        (ENV, "use https for API_URL"),
        (YAML, "let port be as it is"),
        (PACKAGE, "upgrade express to at least 5.0.0"),
        (PACKAGE, "no changes please, except version to 3.0.0"),
        (TOML, "don't change server port to 1 and database port to 2"),
        (TOML, "if tls is on, set the server port to 443 and the database port to 1"),
        (PACKAGE, "replace express with fastify"),
        (LEVELS, "turn off Restart"),
        *((YAML, f"port should be {what}") for what in ("higher", "increased", "changed", "reviewed", "open")),
        *((YAML, f"set port to {what}") for what in ("higher", "default", "any", "5am", "5GB", "(5)")),
        (YAML, "make port configurable"),
        (YAML, "port goes to hell"),
        (YAML, "banner should be shorter"),
        (YAML, "banner should be translated to German"),
        (YAML, "host should be removed"),
        (YAML, "set banner to upper case"),
        (YAML, "set banner to your liking"),
        (YAML, "set port from 500 to 2000"),
        (YAML, "set port from 80 to 90"),
        (YAML, "banner should be a bit friendlier"),
        (FRAMED, "status should be closed and tag v2.0"),
        (FRAMED, "set day to May 5"),
        (FRAMED, "set at to 10pm"),
    ],
)
def test_what_depends_or_is_more_than_a_value_changes_nothing(text: str, instruction: str) -> None:
    """It stood in the file."""
    made, left_out = made_of(text, instruction)
    assert (made, bool(left_out)) == (text, True)


def test_members_of_one_name_are_set_one_after_another() -> None:
    said, other = "Set the server port to 81 and the database port to 5433.", 'Set the server host to "a, port to 1"'
    assert turns_of(TOML, said) == ["Set the server port to 81", "the database port to 5433."]
    assert turns_of(TOML, other) == [other]
    for governed in (
        "don't change server port to 1 and database port to 2",
        "if it is on, set server port to 1, database port to 2",
    ):
        assert turns_of(TOML, governed) == [governed]
    done = redraft.load("nano").edit(TOML, (0, len(TOML)), instruction=said, seed=1)
    assert (done.text, done.left_out) == (TOML.replace("= 80", "= 81").replace("5432", "5433"), ())


def test_what_a_model_chose_is_a_guess() -> None:
    record = record_of(YAML, "Set port to 80 and give the host some name, web1")
    assert record is not None
    asked = record.asked("Set port to 80 and give the host some name, web1")
    answer = record.text.replace("8080", "80").replace('"localhost"', '"web1"')
    assert record.guesses(asked, answer) == ("host",)
    assert record.guesses(asked, record.text) == ()
    assert record.guesses("Add a name.", record.text[:-1] + ',"name":"x"}') == ("name",)


def test_a_name_that_is_taken_is_named() -> None:
    record = record_of(POST, "rename debug to hosts")
    assert record is not None
    assert record.after('{"title":"Hi there","hosts":3,"hosts":true,"name":"web","note":"a b"}') is None
    assert record.left_out("Rename debug to hosts.", record.text) == ("debug",)


@pytest.mark.parametrize(
    ("text", "instruction", "old", "new", "left"),
    [
        (YAML, "set port to 80 and the wibble count to 3", "8080", "80", "wibble count"),
        (YAML, "Set the host to web1 and the flux capacitor to Never", "localhost", "web1", "flux capacitor"),
        (YAML, "Rename host to hostname and set it to web1", "host:", "hostname:", "set it to web1"),
        (YAML, "double the workers and set port to 80", "8080", "80", "double the workers"),
        (YAML, "set port to 80 and restart the server", "8080", "80", "restart the server"),
        (YAML, "set host to web1 temporarily", "localhost", "web1", "temporarily"),
        (YAML, "remove banner and debg", "banner: Hello there\n", "", "and debg"),
        (YAML, "drop the banner, and relaunch with 9 workers", "banner: Hello there\n", "", "relaunch"),
        (YAML, "remove banner and raise workers by 2", "banner: Hello there\n", "", "raise workers by 2"),
        (YAML, "set port to 80 and host as well", "8080", "80", "and host as well"),
        (YAML, "set port to 80 and host likewise", "8080", "80", "and host likewise"),
        (YAML, "set banner to Shop 2 and bump workers by one", "Hello there", "Shop 2", "bump workers by one"),
        (TOML, "Set the server's port to 90 and the database's port to 6000", "= 80\n", "= 90\n", "6000"),
    ],
)
def test_what_else_is_said_is_named(text: str, instruction: str, old: str, new: str, left: str) -> None:
    made, left_out = made_of(text, instruction)
    assert made == text.replace(old, new, 1)
    assert any(left in one for one in left_out), left_out


@pytest.mark.parametrize(
    ("text", "instruction"),
    [
        (ENV, "Set the redis port to 6380"),
        (ENV, "Comment out API_URL"),
        (YAML, "set the metrics port to 9100"),
        (PACKAGE, "Set the node version to 22"),
        (PACKAGE, "What happens if I set version to 3?"),
        (YAML, "should I set debug to true?"),
        (YAML, "The port was set to 80 by mistake."),
        (YAML, "Set host to either web1 or web2"),
        (YAML, "bump the port to the next free one"),
        (YAML, "Set port to 80, no, 81"),
        (YAML, "copy host to hostname"),
        (YAML, "If workers is 4, set port to 80"),
        (YAML, "set port to 80 when it is free"),
        (YAML, "Maybe we should raise workers to 16 at some point."),
        (YAML, "both timeouts should be 20"),
        (YAML, "change REDIS_HOST to cache.lan"),
        (UNIT, "Set TimeoutStopSec to 20"),
        (YAML, "Rename port to server port."),
        (YAML, "remove the comment behind banner"),
        (YAML, "disable debug verification"),
        (YAML, "add two more workers"),
        (YAML, "translate the banner to German"),
        (ENV, "Change the password in API_URL to hunter2"),
    ],
)
def test_what_is_not_meant_or_not_clear_changes_nothing_and_is_named(text: str, instruction: str) -> None:
    made, left_out = made_of(text, instruction)
    assert (made, bool(left_out)) == (text, True)


@pytest.mark.parametrize(
    ("key", "old", "text", "value", "beside"),
    [
        ("host", '"localhost"', "web1 as planned", '"web1"', ""),
        ("host", '"localhost"', "web1 in the next release", '"web1"', "in the next release"),
        ("title", '"Hi there"', "Notes, bolts and nuts", '"Notes, bolts and nuts"', ""),
        ("owner", '"Bob"', "Ann and Eve, please", '"Ann and Eve"', ""),
        ("host", '"localhost"', "'a b' for tests", '"a b"', "for tests"),
        ("timeout", "10", "30 seconds", "30", ""),
        ("timeout_ms", "10", "30 seconds", None, ""),
        ("timeout", "10", "30 minutes", None, ""),
        ("size", "10", "95 %", '"95 %"', ""),
        ("port", "10", "twenty-one", "21", ""),
        ("debug", "false", "enabled", "true", ""),
        ("note", "null", "see below", '"see below"', ""),
        ("file", '"a"', '""', '""', ""),
        ("origin", '"http://a.org"', "*.", '"*"', ""),
        ("dir", '"/srv"', "/srv/data/.", '"/srv/data/"', ""),
        ("dir", '"/srv"', "..", '".."', ""),
        ("language", '"C"', "C#.", '"C#"', ""),
        ("name", '"Ada King"', "Acme Inc.", '"Acme Inc."', ""),
    ],
)
def test_a_value_is_what_its_clause_states(key: str, old: str, text: str, value: str | None, beside: str) -> None:
    assert stated(key, old, text) == Stated(value, beside)


@pytest.mark.parametrize(
    ("text", "begin"),
    [('\ufeffhost = "l"\nport = 8080\n', 0), ('\ufeff{"host":"l","port":8080}\n', 0), ("\ufeffport = 8080\n", 1)],
)
def test_a_mark_of_byte_order_is_no_part_of_a_file(text: str, begin: int) -> None:
    """Nothing came of any instruction, and the exit code was 0."""
    done = redraft.load("nano").edit(text, (begin, len(text)), instruction="Set port to 9090.", seed=1)
    assert (done.text, done.left_out) == (text.replace("8080", "9090"), ())

"""The command tree. Importing it imports no torch; each verb imports what it needs when it runs."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from redraft import __version__
from redraft.cli import (
    bench,
    chat,
    connect,
    decide,
    demo,
    doctor,
    edit,
    fill,
    generate,
    infill,
    inspect,
    json,
    pull,
    quantize,
    run,
    serve,
    tune,
    verify,
    watch,
)
from redraft.cli import eval as eval_verb
from redraft.cli import help as help_verb
from redraft.errors import did_you_mean

EPILOG = """examples:
  redraft demo                                       see canvases settle on the models in the package
  redraft json --schema 'name, age int' 'Alice is 31 years old.'
  redraft generate --model nano-sudoku --chat --watch $'sudoku\\n.153..\\n..3..4\\n......\\n.3.245\\n6514..\\n.4..6.'
  redraft eval --json > scores.json
  redraft serve                                      a page to watch, and an API for other tools

The result goes to stdout, everything else to stderr. Exit codes: 0 done, 1 our failure, 2 a mistake in the call,
3 some of many have no answer, 130 interrupted."""

CHOICE = re.compile(r"argument (?P<name>\S+): invalid choice: '(?P<given>.*)' \(choose from (?P<known>.*)\)", re.DOTALL)


class Parser(argparse.ArgumentParser):
    """Prints a mistake in one line, with the word that was probably meant, and a usage line of one line."""

    given: Sequence[str] = ()

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As the base class does it; notes what was given."""
        self.given = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def error(self, message: str) -> NoReturn:
        """Leave with exit code 2."""
        unknown = [word for word in self.given if word[:2] == "--" != word and not self._get_option_tuples(word)]
        if message.startswith("the following arguments are required") and unknown:
            self.given = ()
            self.refuse_unknown(unknown)  # a flag that is misspelt is one that is missing
        if found := CHOICE.fullmatch(message):
            known = re.findall(r"'([^']*)'", found["known"])
            near = did_you_mean(found["given"], known)
            message = f"{found['name']} is {found['given']!r}; choose from {', '.join(known)}{near}"
            if found["name"] == "VERB":
                message = f"there is no verb {found['given']!r}{near}"
        message = " ".join(message.split())
        advice = f"see `{self.prog} --help`"
        self.exit(
            2,
            f"redraft: {message} {advice.capitalize()}\n" if message[-1] == "?" else f"redraft: {message}; {advice}\n",
        )

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """Leave with exit code 2 because of unknown words, with advice on the first one."""
        flag = words[0].partition("=")[0]
        if not flag.startswith("-"):
            self.error(f"unknown word {' '.join(words)}")
        known = {name.lstrip("-"): name for name in self._option_string_actions}
        near = did_you_mean(flag.lstrip("-"), known).replace(" '", " '--")
        self.error(f"unknown flag {' '.join(word for word in words if ' ' not in word)}{near}")

    def format_usage(self) -> str:
        """The verb, its words and the flags it cannot do without."""
        self.usage = self._brief_usage()
        return super().format_usage()

    def format_help(self) -> str:
        """The whole help, in which the flags stand with their explanations and not in the usage, too."""
        self.usage = self._brief_usage()
        return super().format_help()

    def _brief_usage(self) -> str:
        words = [self.prog]
        for action in self._actions:
            name = str(action.metavar or action.dest)
            if not action.option_strings:
                words.append(f"[{name}]" if action.nargs == "?" else f"{name} …" if action.nargs == "A..." else name)
            elif action.required:
                words.append(f"{action.option_strings[-1]} {name}")
        return " ".join([*words, "[flags]"]).replace("%", "%%")


def build_parser() -> Parser:
    """The parser of every verb, in the order of `--help`."""
    parser = Parser(
        prog="redraft",
        description="Run, measure and train block-diffusion language models of the DiffusionGemma family.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"redraft {__version__}")
    parser.set_defaults(run=lambda _: _print_help(parser), parser=parser, debug=False, root=parser)
    commands = parser.add_subparsers(title="verbs", metavar="VERB")
    answering = (demo, generate, json, chat, decide, infill, fill, edit, watch, serve, run, connect, doctor)
    for module in (*answering, eval_verb, inspect, verify, bench, tune, quantize, pull, help_verb):
        module.add(commands)
    return parser


def _print_help(parser: Parser) -> int:
    """The name alone was typed."""
    parser.print_help(sys.stderr)
    return 2

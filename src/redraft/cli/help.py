"""`redraft help`: the help of a verb, or every flag of a topic that several verbs share."""

from __future__ import annotations

import argparse
from collections.abc import Mapping

from redraft.cli.common import Commands, command
from redraft.cli.flags import TOPICS, add_topic
from redraft.errors import RequestError, did_you_mean

EPILOG = "topics:\n" + "\n".join(f"  {name:<10} {what}" for name, what in TOPICS.items())


def add(commands: Commands) -> None:
    """Add the command."""
    parser = command(commands, "help", "explain a verb, or flags that several verbs share", run, epilog=EPILOG)
    parser.add_argument("topic", nargs="?", metavar="TOPIC", help="a verb or a topic (default: the list of verbs)")
    parser.set_defaults(verbs=commands.choices)


def run(arguments: argparse.Namespace) -> int:
    """Print the help."""
    verbs: Mapping[str, argparse.ArgumentParser] = arguments.verbs
    if arguments.topic is None:
        arguments.root.print_help()
    elif arguments.topic in TOPICS:
        print(topic(arguments.topic).format_help(), end="")
    elif arguments.topic in verbs:
        verbs[arguments.topic].print_help()
    else:
        near = did_you_mean(arguments.topic, (*verbs, *TOPICS))
        raise RequestError(f"there is no help on {arguments.topic!r}; give a verb, {', '.join(TOPICS)}{near}")
    return 0


def topic(name: str) -> argparse.ArgumentParser:
    """A parser of all flags of a topic, which is there to be printed."""
    parser = argparse.ArgumentParser(
        prog="redraft",
        usage="redraft VERB … [flags]",
        description=f"{TOPICS[name][0].upper()}{TOPICS[name][1:]}.",
        add_help=False,
    )
    add_topic(parser, name)
    return parser

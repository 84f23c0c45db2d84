"""`symconfig completion`: a script that lets a shell complete this command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Mapping
from typing import Any

from symconfig.cli.options import adds, option
from symconfig.cli.shared import print_json, write_data
from symconfig.errors import FailedError

NAME = "completion"
DOES = "print what lets bash, zsh or fish complete commands, options, files and names of the zoo"
EXAMPLES = ("symconfig completion bash", "symconfig completion fish")
SHELLS = ("bash", "zsh", "fish")
INSTALL = "pip install 'shtab>=1.13,<2'"
_FILE = re.compile(r"FILE|PATH|DATA|.*\.[a-z]+$|.*FILE\|")  # metavars of what lies on a disk
# How a shell offers words, and files beside them: a function of its own, or code.
_WORDS: Mapping[str, str] = {
    "bash": '_symconfig_{kind}() {{ compgen -W \'{words}\' -- "$1"; compgen -f -- "$1"; }}\n',
    "zsh": "_symconfig_{kind}() {{ compadd -- {words}; _files }}\n",
    "fish": "(printf '%s\\n' {words}; __fish_complete_path (commandline -ct))",
}


add_options = adds(
    lambda: (option("shell", None, "the shell; where its script goes: docs/how-to/install.md", choices=SHELLS),)
)


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script; return 0. Raises FailedError if shtab is not installed."""
    text = script(arguments.shell)
    if arguments.json:
        print_json({"schema": "symconfig.completion/1", "shell": arguments.shell, "script": text})
    else:
        write_data(text)
    return 0


def script(shell: str) -> str:
    """Return a shell's completion script. Raises FailedError if shtab is not installed."""
    try:
        import shtab
    except ImportError:
        raise FailedError("completion needs shtab, which is not installed", hint=INSTALL) from None
    from symconfig.cli.main import parser_of

    parser, names = parser_of([]), _names()
    for command, action in _actions(parser):
        kind = _kind(command, action)
        places = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
        if kind is not None:
            words = " ".join(names[kind])
            code = _WORDS["fish"].format(words=words) if shell == "fish" else f"_symconfig_{kind}"
            action.complete = {**places, shell: code}
        elif isinstance(action.metavar, str) and (action.metavar == "DIR" or _FILE.match(action.metavar)):
            action.complete = places
    functions = "".join(_WORDS[shell].format(kind=kind, words=" ".join(words)) for kind, words in names.items())
    preamble = {name: "" if name == "fish" else functions for name in shtab.SUPPORTED_SHELLS}
    text: str = shtab.complete(parser, shell, preamble=preamble)
    return text if text.endswith("\n") else f"{text}\n"


def _names() -> dict[str, tuple[str, ...]]:
    """Return the completed names by kind: model, cluster, listed (both), target, launcher."""
    from symconfig.descriptor.load import zoo_clusters, zoo_models
    from symconfig.render import every_launcher, targets

    models, clusters = tuple(zoo_models()), tuple(zoo_clusters())
    return {
        "model": models,
        "cluster": clusters,
        "listed": (*models, *clusters),
        "target": tuple(targets()),
        "launcher": tuple(every_launcher()),
    }


def _kind(command: str, action: argparse.Action) -> str | None:
    """Return the kind of names that an argument completes to; None for no names."""
    if (command, action.dest) == ("list", "name"):
        return "listed"
    return action.dest if action.dest in ("model", "cluster", "target", "launcher") else None


def _actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, Any]]:
    """Yield (command's name, argparse action) for each argument of each command."""
    for group in parser._actions:
        if isinstance(group, argparse._SubParsersAction):
            for name, command in group.choices.items():
                yield from ((name, action) for action in command._actions)

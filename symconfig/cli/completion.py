"""`symconfig completion`: a script that lets a shell complete this command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

from symconfig.cli.options import adds, option
from symconfig.cli.shared import print_json, write_data
from symconfig.errors import FailedError

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
    """Return the script that completes commands, options, files and names of models, clusters, targets and launchers in
    a shell. Raises FailedError if shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise FailedError("completion needs shtab, which is not installed", hint=INSTALL) from None
    from symconfig.cli.main import parser_of
    from symconfig.descriptor.load import zoo_clusters, zoo_models
    from symconfig.render import every_launcher, targets

    names = {"model": zoo_models(), "cluster": zoo_clusters(), "target": [*targets()], "launcher": [*every_launcher()]}
    names["listed"] = [*names["model"], *names["cluster"]]
    parser = parser_of([])
    (commands,) = (one for one in parser._actions if isinstance(one, argparse._SubParsersAction))
    every = [(name, action) for name, command in commands.choices.items() for action in command._actions]
    for command, action in every:
        kind = "listed" if (command, action.dest) == ("list", "name") else action.dest
        places = shtab.DIRECTORY if action.metavar == "DIR" else shtab.FILE
        if kind in names:
            code = _WORDS["fish"].format(words=" ".join(names[kind])) if shell == "fish" else f"_symconfig_{kind}"
            action.complete = {**places, shell: code}
        elif isinstance(action.metavar, str) and (action.metavar == "DIR" or _FILE.match(action.metavar)):
            action.complete = places
    functions = "".join(_WORDS[shell].format(kind=kind, words=" ".join(words)) for kind, words in names.items())
    preamble = {name: "" if name == "fish" else functions for name in shtab.SUPPORTED_SHELLS}
    text: str = shtab.complete(parser, shell, preamble=preamble)
    return text if text.endswith("\n") else f"{text}\n"

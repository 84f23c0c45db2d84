"""`symconfig serve`: the planner behind a page with a form, on this machine."""

from __future__ import annotations

import argparse

from symconfig.cli.shared import say, whole, within
from symconfig.errors import InputError

NAME = "serve"
DOES = "plan in a browser: a page with a form, on this machine"
EXAMPLES = ("symconfig serve", "symconfig serve --host 0.0.0.0 --name planner.example.org --port 8080")
_INSTALL = "pip install 'symconfig[serve]', or pip install starlette uvicorn"
_LOCAL = "127.0.0.1"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    add = parser.add_argument
    add("--port", metavar="P", type=within(0, 65535), default=8000, help="0: any that is free (default 8000)")
    add("--host", metavar="H", default=_LOCAL, help="an address others can reach; prints a token that each must bring")
    add("--name", metavar="N", action="append", default=[], help="a name under which others ask for it, with --host")
    add("--workers", metavar="N", type=whole, default=2, help="searches at once (default 2)")
    add("--timeout", metavar="S", type=whole, default=300, help="seconds for a search (default 300)")


def run(arguments: argparse.Namespace) -> int:
    """Serve until interrupted; return 0. Prints the address, with a token unless it is local.

    Raises InputError if the port cannot be used or a package is missing.
    """
    import secrets

    if arguments.problems.all:
        raise InputError(arguments.problems.all)
    try:
        import uvicorn

        from symconfig.serve.app import app
        from symconfig.serve.connections import listening, settings
        from symconfig.serve.guard import LOCAL, Guard
        from symconfig.serve.workers import Bounds
    except ImportError as error:
        raise InputError(f"needs {error.name}, which is not installed", field="serve", hint=_INSTALL) from None
    alone = arguments.host in ("localhost", _LOCAL, "::1")
    token = None if alone else secrets.token_urlsafe(24)
    names = LOCAL if alone else frozenset({*LOCAL, arguments.host, *arguments.name})
    socket = listening(arguments.host, arguments.port)
    shown = arguments.host if alone else next(iter(arguments.name), arguments.host)
    say([f"http://{shown}:{socket.getsockname()[1]}/" + (f"?token={token}" if token else "")])
    made = app(Guard(names, token), Bounds(workers=arguments.workers, solve_s=float(arguments.timeout)))
    uvicorn.Server(settings(made)).run(sockets=[socket])
    return 0

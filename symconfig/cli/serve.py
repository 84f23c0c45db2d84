"""`symconfig serve`: the planner behind a page with a form, on this machine."""

from __future__ import annotations

import argparse

from symconfig.cli.shared import say, whole, within
from symconfig.errors import InputError

NAME = "serve"
DOES = "plan in a browser: a page with a form, on this machine"
EXAMPLES = ("symconfig serve", "symconfig serve --port 8080 --workers 4")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the command's options to its parser."""
    add = parser.add_argument
    add("--port", metavar="P", type=within(0, 65535), default=8000, help="0: any that is free (default 8000)")
    add("--workers", metavar="N", type=whole, default=2, help="searches at once (default 2)")
    add("--timeout", metavar="S", type=whole, default=300, help="seconds for a search (default 300)")


def run(arguments: argparse.Namespace) -> int:
    """Print the address and serve until interrupted. Raises InputError if the port cannot be used."""
    if arguments.problems.all:
        raise InputError(arguments.problems.all)
    from symconfig.serve.app import Server

    with Server(arguments.port, arguments.workers, float(arguments.timeout)) as server:
        say([f"http://127.0.0.1:{server.server_port}/"])
        server.serve_forever()
    return 0

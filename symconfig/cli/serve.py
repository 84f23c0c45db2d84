"""`symconfig serve`: the planner behind a page with a form, on this machine."""

from __future__ import annotations

import argparse

from symconfig.cli.options import adds, flag, option
from symconfig.cli.shared import say, whole, within
from symconfig.errors import InputError

DOES = "plan in a browser: a page with a form, on this machine; or as an agent's tools"
EXAMPLES = ("symconfig serve --port 8080 --workers 4", "symconfig serve --mcp")


add_options = adds(
    lambda: (
        flag("--mcp", "be a server of the Model Context Protocol on stdin and stdout, for agents and editors"),
        option("--port", "P", "0: any that is free (default 8000)", type=within(0, 65535), default=8000),
        option("--workers", "N", "searches at once (default 2)", type=whole, default=2),
        option("--timeout", "S", "seconds for a search (default 300)", type=whole, default=300),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the address and serve until interrupted; with --mcp answer on stdin and stdout until they close.

    Raises InputError for wrong options, an unusable port, or --mcp without its extra.
    """
    if arguments.problems.all:
        raise InputError(arguments.problems.all)
    if arguments.mcp:
        from symconfig.serve.agents import serve

        serve()
        return 0
    from symconfig.serve.app import Server

    with Server(arguments.port, arguments.workers, float(arguments.timeout)) as server:
        say([f"http://127.0.0.1:{server.server_port}/"])
        server.serve_forever()
    return 0

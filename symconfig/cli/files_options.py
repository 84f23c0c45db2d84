"""The options of every command that writes the files of a plan, and what they ask for."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from symconfig.api.planning import Wanted


def add_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """--target, --launcher, --templates."""
    add = parser.add_argument
    add("--target", metavar="T", help="the format (default: the plan's framework); `symconfig formats` lists them")
    add(
        "--launcher",
        metavar="L",
        action="append",
        help="what starts it, with its settings: slurm:partition=big (default: slurm); may be repeated",
    )
    add("--templates", metavar="DIR", help="templates of your own, over those of a target or as new ones")


def wanted(arguments: argparse.Namespace) -> Wanted:
    """The options that say which files. Raises InputError for names that there are none of."""
    from symconfig.api.planning import Wanted

    found = Wanted.of(arguments.target, arguments.launcher, arguments.templates)
    found.check()
    return found

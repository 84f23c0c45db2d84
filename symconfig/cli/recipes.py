"""`symconfig recipes`."""

from __future__ import annotations

import argparse
from functools import partial

from symconfig.cli.shared import as_option, show, whole
from symconfig.errors import reworded
from symconfig.format import picked

NAME = "recipes"
DOES = "list published training layouts, or show one; `plan --like NAME` starts from it"
EXAMPLES = ("symconfig recipes --model llama3.1-70b --cluster h100",)


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("name", nargs="?", metavar="NAME", help="show this recipe as a whole")
    add("--model", metavar="M", help="of this zoo model")
    add("--cluster", metavar="C", help="on this zoo cluster")
    add("--gpus", metavar="N", help="on so many GPUs")
    add("--task", metavar="T", help="pretrain or sft")
    add("--kind", metavar="K", help="performance (tuned for speed) or training (shipped for real runs)")
    add("--source", metavar="TEXT", help="with this in the title, repository or release of the source")


def run(arguments: argparse.Namespace) -> int:
    """Print one recipe, or the list of those that are asked for. Exit 0."""
    from symconfig.api.recipes import recipe, recipes
    from symconfig.report.recipes import listed, shown

    if arguments.name is not None:
        one = recipe(arguments.name)
        show(arguments, lambda: {"schema": "symconfig.recipe/1", **one.to_dict()}, lambda: shown(one.to_dict()))
        return 0
    gpus, filters = whole("--gpus", arguments.gpus), picked(arguments, "model", "cluster", "task", "kind", "source")
    with reworded(partial(as_option, arguments=arguments)):
        rows = recipes(gpus=gpus, **filters)
    data = [one.to_dict() for one in rows]
    show(arguments, lambda: {"schema": "symconfig.recipes/2", "recipes": data}, lambda: listed(data))
    return 0

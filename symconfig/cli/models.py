"""`symconfig models`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from symconfig.cli.shared import show

NAME = "models"
DOES = "list the models that come with it, or show one; or what is read of others"
EXAMPLES = (
    "symconfig models --families",
    "symconfig models llama3.1-70b",
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="show this one: a zoo name, or a path; a family's name")
    parser.add_argument(
        "--families",
        action="store_true",
        help="list the families of config.json (model_type) instead: what is read, and which target can be told it",
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one model or family as a whole. Exit 0."""
    if arguments.families:
        return _families(arguments)
    from symconfig.report.zoo import model_list, model_shown

    if arguments.name is not None:
        from symconfig.api.zoo import model

        one = model(arguments.name)
        show(  # as JSON a descriptor, which --model takes
            arguments,
            lambda: one.model_dump(mode="json", by_alias=True, exclude_defaults=True),
            lambda: model_shown(one),
        )
        return 0
    from symconfig.api.zoo import models

    lines = models()
    data = {"schema": "symconfig.models/1", "models": [asdict(one) for one in lines]}
    show(arguments, lambda: data, lambda: model_list(lines))
    return 0


def _families(arguments: argparse.Namespace) -> int:
    from symconfig.api.zoo import families, family
    from symconfig.report.families import family_list, family_shown

    listed = families() if arguments.name is None else (family(arguments.name),)
    show(
        arguments,
        lambda: {"schema": "symconfig.families/1", "families": [one.to_dict() for one in listed]},
        lambda: family_list(listed) if arguments.name is None else family_shown(listed[0]),
    )
    return 0

"""`symconfig clusters`."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from symconfig.cli.shared import named_cluster, show

NAME = "clusters"
DOES = "list the clusters that come with it, or show one with its sources"
EXAMPLES = (
    "symconfig clusters",
    'symconfig clusters "h100 with network=4x200Gb/s and gpus_per_node=4"',
)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="show this one: a zoo name, a path, or with what differs"
    )


def run(arguments: argparse.Namespace) -> int:
    """Print the list, or one cluster as a whole. Exit 0."""
    from symconfig.report.zoo import cluster_list, cluster_shown

    if arguments.name is not None:
        one = named_cluster(arguments.name, "NAME")
        show(  # as JSON a descriptor, which --cluster takes
            arguments,
            lambda: one.model_dump(mode="json", by_alias=True, exclude_unset=True),
            lambda: cluster_shown(one),
        )
        return 0
    from symconfig.api.zoo import clusters

    lines = clusters()
    data = {"schema": "symconfig.clusters/1", "clusters": [asdict(one) for one in lines]}
    show(arguments, lambda: data, lambda: cluster_list(lines))
    return 0

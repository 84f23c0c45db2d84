"""`symconfig doctor`: versions, data folders, and what plans' options want."""

from __future__ import annotations

import argparse

from symconfig.cli.options import adds
from symconfig.cli.shared import show

DOES = "versions, data folders, and what options of plans want on this machine"
EXAMPLES = ("symconfig doctor",)


add_options = adds(tuple)


def run(arguments: argparse.Namespace) -> int:
    """Print what is installed and, if planning's packages are, what options need; return 1 if planning cannot work."""
    from symconfig.report.doctor import BASE, blocks, examine, sites

    health = examine()
    health["sites"] = list(sites()) if all(health["packages"][name] for name in BASE) else []
    show(arguments, lambda: health, lambda: blocks(health))
    return 0 if health["healthy"] else 1

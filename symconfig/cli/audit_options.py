"""The options of `symconfig audit` and `symconfig adapt`. Imported with every command line."""

from __future__ import annotations

import argparse


def add_audit(parser: argparse.ArgumentParser) -> None:
    """The options of `symconfig audit`."""
    add = parser.add_argument
    add(
        "source",
        metavar="FILE|ARGS",
        nargs="?",
        help="launch script, YAML, DeepSpeed JSON, or a line of arguments; nothing of it is executed",
    )
    add("--cluster", metavar="C", help="zoo name, or path of a descriptor; without it nothing is predicted")
    add("--gpus", metavar="N", help="how many GPUs it runs on (default: what its launcher says)")
    add("--model", metavar="M", help="zoo name, descriptor or config.json, where the configuration names no model")
    add("--seq-length", metavar="S", help="tokens, where the configuration does not say")
    add("--vocab-size", metavar="V", help="tokens of the vocabulary, where the configuration does not say")
    add("--megatron-version", metavar="V", help="core_v0.12.1 to core_v0.19.0, dev (default: the newest that fits)")
    add("--memory-margin", metavar="X", help="share of the GPU's memory that must stay free (default 0.04)")
    add("--no-plan", action="store_true", help="do not look for a better plan")
    add("--best", metavar="PLAN.json", help="write the best plan there, for `symconfig adapt`")
    add("--sarif", metavar="FILE.sarif", help="write what is wrong there, for code review")
    add("--force", action="store_true", help="replace files that exist")
    add("--strict", action="store_true", help="exit 1 on warnings, notes, and where not all was understood, too")
    add("--rules", action="store_true", help="list every rule, and do nothing else")
    add_script(parser)


def add_adapt(parser: argparse.ArgumentParser) -> None:
    """The options of `symconfig adapt`."""
    add = parser.add_argument
    add(
        "source",
        metavar="FILE|ARGS",
        help="launch script, YAML, DeepSpeed JSON, or a line of arguments; nothing of it is executed",
    )
    add("--plan", metavar="PLAN.json", required=True, help="a plan, or the folder that holds it")
    add("--in-place", action="store_true", help="write the files, all or none (default: only show what would change)")
    add("--partial", action="store_true", help="with --in-place: write what could be placed where not all could")
    add_script(parser)


def add_script(parser: argparse.ArgumentParser) -> None:
    """What a script takes from outside."""
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a variable of the script's environment; what follows a lone -- are its arguments",
    )
    parser.set_defaults(extra=[])

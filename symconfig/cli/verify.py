"""`symconfig verify`: rendered files held against the real frameworks."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from symconfig.cli.shared import file_of, show, timeout, working
from symconfig.errors import InputError

NAME = "verify"
DOES = "hold rendered files against the real frameworks"
EXAMPLES = ("symconfig verify out",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("folder", metavar="DIR", help="what `plan --out` wrote")
    parser.add_argument(
        "--build",
        action="store_true",
        help="let the framework build ranks of the plan, and compare what they hold with the plan",
    )
    parser.add_argument(
        "--trace",
        action="store_true",
        help="also run the modules of those ranks without memory, and compare what they keep for the "
        "backward, tensor by tensor (with --build, which it implies)",
    )
    parser.add_argument(
        "--run-edited",
        action="store_true",
        help="also run scripts and programs of the folder that are not what symconfig writes from its plan",
    )
    parser.add_argument("--megatron", metavar="PATH", help="a Megatron-LM checkout, instead of the fetched source")
    parser.add_argument("--timeout", metavar="S", help="seconds for each run of a framework (default 120)")


def run(arguments: argparse.Namespace) -> int:
    """Exit 1 when a check failed."""
    from symconfig.report.checks import blocks
    from symconfig.verify.checks import TIMEOUT_S, passed, verify

    folder = Path(arguments.folder)
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "there is no such folder"
        raise InputError(what, file=arguments.folder, hint="symconfig plan ... --out DIR")
    limit_s = timeout(arguments.timeout) or TIMEOUT_S
    with working() as progress:
        checks = verify(
            folder,
            megatron=file_of(arguments.megatron or None),
            timeout_s=limit_s,
            progress=progress.say,
            build=arguments.build,
            trace=arguments.trace,
            run_edited=arguments.run_edited,
        )
    data = {"schema": "symconfig.verify/1", "folder": str(folder), "passed": passed(checks)}
    show(arguments, lambda: data | {"checks": [asdict(check) for check in checks]}, lambda: blocks(folder, checks))
    return 0 if passed(checks) else 1

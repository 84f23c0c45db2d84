"""`symconfig render`: the files of a plan for a target."""

from __future__ import annotations

import argparse
from pathlib import Path

from symconfig.cli.options import add_files, wanted
from symconfig.cli.shared import print_json, replaced, wrote
from symconfig.errors import InputError

NAME = "render"
DOES = "write the files of a plan for a target"
EXAMPLES = ("symconfig render out --target bridge --out bridge",)


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("plan", metavar="PLAN.json", help="what `symconfig plan --out` or `--json` gave, or its folder")
    add_files(parser)
    parser.add_argument("--out", metavar="DIR", required=True)
    parser.add_argument("--force", action="store_true", help="write into a folder that exists")


def run(arguments: argparse.Namespace) -> int:
    """Write the files, and name them. Exit 0."""
    from symconfig.api import planning as api
    from symconfig.plans.file import load_plan

    out = Path(arguments.out)
    problems = api.Problems()
    problems.collect(lambda: api.check_free(out, arguments.force))
    loaded = problems.collect(lambda: load_plan(Path(arguments.plan)))
    files = problems.collect(lambda: wanted(arguments))
    if problems.all or loaded is None or files is None:
        raise InputError(problems.all)
    written = api.write(loaded, out, files, force=arguments.force, tell=replaced)
    if arguments.json:
        data = {"schema": "symconfig.render/1", "target": files.of_plan(loaded), "folder": str(out)}
        print_json(data | {"files": [str(path.relative_to(out)) for path in written]})
    else:
        wrote(out, written, False, api.remarks(loaded, files))
    return 0

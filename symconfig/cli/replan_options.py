"""The options of `symconfig replan` and `symconfig diff`. Imported with every command line."""

from __future__ import annotations

import argparse

from symconfig.cli.plan_options import add_answer, add_job


def add_replan(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig replan`."""
    parser.add_argument("plan", metavar="PLAN.json", help="the plan, or the folder that holds it")
    parser.set_defaults(job=None)  # the recorded job is what the options lie above
    parser.add_argument(
        "--accept-edits", action="store_true", help="solve a plan whose inputs were edited in the file as they are"
    )
    near = parser.add_argument_group("the old plan")
    near.add_argument(
        "--keep", metavar="NAMES", help="choices that stay: tp,pp,vpp,cp,ep,etp,dp,mbs,zero,sp,recompute,precision, ..."
    )
    near.add_argument("--release", metavar="NAMES", help="recorded pins that are free now")
    run = parser.add_argument_group("the run")
    run.add_argument("--checkpoint", metavar="DIR", help="what it has saved: its kind, and its step")
    run.add_argument("--at-step", metavar="K", help="iterations done (default: as the checkpoint or the plan says)")
    run.add_argument(
        "--schedule",
        metavar="S",
        help="keep (default): the same tokens and learning rate of each; as-is: the same iterations",
    )
    add_job(parser)
    add_answer(parser)


def add_diff(parser: argparse.ArgumentParser) -> None:
    """Those of `symconfig diff`."""
    parser.add_argument("before", metavar="A.json", help="a plan, or the folder that holds it")
    parser.add_argument("after", metavar="B.json", help="another one")
    parser.add_argument("--exit-code", action="store_true", help="exit 1 where they differ")

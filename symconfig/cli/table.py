"""Every command: what it is called and does, its options, and the function that runs it."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from symconfig.cli import audit_options as audit
from symconfig.cli import measured_options as measured
from symconfig.cli import partition_options as partition
from symconfig.cli import plan_options as plan
from symconfig.cli import replan_options as replan
from symconfig.cli import sweep_options as sweep


def _none(parser: argparse.ArgumentParser) -> None:
    """No options."""


@dataclass(frozen=True, slots=True)
class Command:
    """run: module and function, imported when the command is called. options: puts them into its parser."""

    name: str
    does: str
    run: str
    options: Callable[[argparse.ArgumentParser], None] = _none


COMMANDS = (
    Command("plan", "find the fastest configuration that fits, and write its files", "commands:plan", plan.add_plan),
    Command(
        "replan",
        "solve a plan's inputs again: what changes and why, and whether its checkpoint still loads",
        "replan:replan",
        replan.add_replan,
    ),
    Command("diff", "in what two plans differ", "diff:diff", replan.add_diff),
    Command(
        "fallback",
        "plan beforehand for a cluster that loses nodes, with a launch script that takes the plan that fits",
        "fallback:fallback",
        plan.add_fallback,
    ),
    Command(
        "audit",
        "read an existing launch script or config: what it will do, what is wrong, what would be better",
        "audit:audit",
        audit.add_audit,
    ),
    Command("adapt", "put a plan's values into an existing launch script or config", "adapt:adapt", audit.add_adapt),
    Command(
        "partition",
        "find a split for every operator and tensor of any graph",
        "partition:partition",
        partition.add_options,
    ),
    Command("render", "write the files of a plan for a target", "commands:render", plan.add_render),
    Command(
        "args",
        "print the words of a plan's program, for $(...) in a script of your own",
        "args:args",
        plan.add_args,
    ),
    Command(
        "check",
        "whether the files of a plan were edited or are stale, for CI: exit 1 when they are",
        "check:check",
        plan.add_check,
    ),
    Command(
        "formats",
        "what a plan can be written as, what can start it, and which of it can carry a certain plan",
        "formats:formats",
        plan.add_formats,
    ),
    Command(
        "checkpoint",
        "what kind of checkpoint a folder holds, and whether a plan's run can go on from it",
        "checkpoint:checkpoint",
        plan.add_checkpoint,
    ),
    Command("verify", "hold rendered files against the real frameworks", "commands:verify", measured.add_verify),
    Command(
        "measure",
        "run one rank of a plan, or a GPU's kernels, on one GPU and time it",
        "measure:measure",
        measured.add_measure,
    ),
    Command(
        "explain",
        "the formulas of a plan, what binds, the runner-up, how every tensor is split",
        "commands:explain",
        plan.add_explain,
    ),
    Command(
        "timeline",
        "draw the schedule of a plan, stage by stage, with its memory",
        "timeline:timeline",
        plan.add_timeline,
    ),
    Command("validate", "predictions against measured runs", "commands:validate", measured.add_validate),
    Command(
        "calibrate",
        "fit the constants of a GPU type to measured runs",
        "commands:calibrate",
        measured.add_calibrate,
    ),
    Command("sweep", "plan many combinations of a job's fields, into one table", "sweep:sweep", sweep.add_sweep),
    Command("size", "how many GPUs of which cluster meet a deadline, at what cost", "size:size", sweep.add_size),
    Command(
        "import", "turn a Hugging Face config.json into a descriptor", "commands:import_config", measured.add_import
    ),
    Command("doctor", "versions, data folders, and what can be verified on this machine", "commands:doctor"),
)

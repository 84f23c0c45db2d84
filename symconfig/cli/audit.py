"""`symconfig audit`: an existing configuration read, judged, and compared with the best plan."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import HTML, adds, flag, number, option, script, some, variables
from symconfig.cli.shared import (
    JSON,
    PAGE,
    SARIF,
    cluster,
    note,
    output,
    refuse,
    say,
    show,
    working,
    write_text,
)
from symconfig.errors import InputError, Problem
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.existing.audit.audit import Audit
    from symconfig.measured.comparison import Comparison
    from symconfig.report.grid import Block

DOES = "read an existing launch script or config: what it will do, what is wrong, what would be better"
EXAMPLES = (
    "symconfig audit train.sh --cluster h100",
    'symconfig audit train.sh --cluster "h100 with network=4x200Gb/s" --set TP=4',
)


add_options = adds(
    lambda: (
        option(
            "source",
            "FILE|ARGS",
            "launch script, YAML, DeepSpeed JSON, or a line of arguments, or several; nothing of it is executed",
            nargs="+",
        ),
        *script(),
        "what it does not state (without --cluster nothing is predicted)",
        *some("cluster", "gpus", "model", "seq_length", "megatron_version", "limits.memory_margin"),
        option("--vocab-size", "N", "tokens of the vocabulary", type=number),
        option("--prompt-length", "N", "tokens of a prompt in the mean, of reinforcement learning", type=number),
        option("--response-length", "N", "tokens of a response in the mean", type=number),
        option("--log", "FILE", "what the running job prints: compared with the prediction, part by part"),
        "the answer",
        flag("--no-plan", "do not look for a better plan"),
        option("--best", "PLAN.json", "write the best plan there, for `symconfig adapt`"),
        option("--sarif", "FILE.sarif", "write what is wrong there, for code review"),
        HTML,
        flag("--force", "replace files that exist"),
        flag("--strict", "exit 1 on warnings, notes, and where not all was understood, too"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Audit each source, print the answers and write the files asked for (--sarif, --best, --html); return the exit
    code.

    0: nothing known prevents a run; 1: one cannot run (with --strict: or has a finding, an unread place or a part that
    is not predicted). With several sources --json, --html, --log and --best are refused. Raises InputError, after all
    other sources were printed, if one could not be read or an option is wrong.
    """
    from symconfig.api.existing import audit_page, compare
    from symconfig.api.planning import Problems

    problems, failed = arguments.problems, Problems()
    if len(arguments.source) > 1:
        refuse(
            arguments, ("json", "html", "log", "best"), "is for one at a time", got=f"{len(arguments.source)} places"
        )
    # The files to write, by their kind; problems of their paths are reported before the work.
    paths = {name: output(arguments, name, kind) for name, kind in (("sarif", SARIF), ("best", JSON))}
    if paths["best"] is not None and arguments.no_plan:
        problems.add(Problem("is the plan that --no-plan does not look for", field="--best"))
    outputs = {name: path for name, path in paths.items() if path is not None}
    html = output(arguments, "html", PAGE)
    audits = []
    for source in arguments.source:
        done = failed.collect(partial(_audited, arguments, source, problems))
        if done is None:
            continue
        audits.append(done)
        if len(arguments.source) > 1:
            say([source])
        log = None if arguments.log is None else failed.collect(partial(compare, done, arguments.log))
        show(arguments, partial(_data, done, log), partial(_blocks, done, log))
        if html is not None:
            write_text(html, audit_page(done, source), arguments.force)
    if audits:
        _write(audits, outputs, arguments.force)
    if failed.all:
        raise InputError(failed.all)
    strictly = (done for done in audits if arguments.strict)
    faults = any(done.findings or done.reading.dark or done.unpredicted for done in strictly)
    return 1 if faults or not all(done.runs for done in audits) else 0


def _data(done: Audit, log: Comparison | None) -> dict[str, Any]:
    """Return the JSON of an audit, with `log` if a log was compared."""
    from symconfig.report.audit_json import to_dict
    from symconfig.report.comparison import to_dict as compared

    return to_dict(done) | ({} if log is None else {"log": compared(log)})


def _blocks(done: Audit, log: Comparison | None) -> list[Block]:
    from symconfig.report.audit import blocks
    from symconfig.report.comparison import blocks as compared

    return [*blocks(done), *([] if log is None else compared(log))]


def _audited(arguments: argparse.Namespace, source: str, outside: Problems) -> Audit:
    """Return the audit of one source. outside: problems of common options. Raises InputError with these and its own."""
    from symconfig.api import existing as api_audit
    from symconfig.api.planning import Problems

    problems = Problems(outside.all)
    on_cluster = problems.read(cluster, arguments.cluster)
    given = supplied(arguments, problems)
    with working() as progress:
        return api_audit.audit(
            source,
            on_cluster,
            **given,
            plan=not arguments.no_plan,
            problems=problems.all,
            progress=lambda text: progress.say(text),
        )


def supplied(arguments: argparse.Namespace, problems: Problems) -> dict[str, Any]:
    """Return the keyword arguments of `audit` from the options that the command has, without problems; malformed --set
    variables are added to `problems` and become None.
    """
    names = (
        "gpus",
        "model",
        "seq_length",
        "megatron_version",
        "vocab_size",
        "prompt_length",
        "response_length",
        "root",
    )
    margin = arguments.memory_margin
    return {
        **{name: getattr(arguments, name) for name in names if hasattr(arguments, name)},
        "limits": None if margin is None else {"memory_margin": margin},
        "variables": problems.collect(lambda: variables(arguments.set)),
        "arguments": arguments.extra,
    }


def _write(audits: Sequence[Audit], outputs: dict[str, Path], force: bool) -> None:
    """Write the SARIF file of all audits and the first audit's better plan, each if its path is given, with a note; a
    note instead if there is no plan.
    """
    from symconfig.format import json_text
    from symconfig.report.audit_json import sarif

    for name, path in outputs.items():
        if name == "sarif":
            text = masked(json_text(sarif(audits)))
        elif audits[0].better is None:
            note(f"{path} is not written: there is no plan")
            continue
        else:
            text = audits[0].better.to_json()
        write_text(path, text, force)

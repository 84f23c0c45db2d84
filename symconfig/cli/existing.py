"""Commands on what is there: `audit` judges a script, `adapt` puts a plan into it, `estimate` prices its layout."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from symconfig.cli.options import HTML, JOB_FILE, PLAN, Command, flag, job, job_options, option, script, some, variables
from symconfig.cli.shared import (
    JSON,
    PAGE,
    SARIF,
    note,
    output,
    plan_of,
    print_json,
    refuse,
    say,
    show,
    whole,
    working,
    write_data,
    write_text,
)
from symconfig.errors import InputError, Problem, Problems
from symconfig.format import masked

if TYPE_CHECKING:
    from symconfig.existing.adapt.draft import Adapted
    from symconfig.existing.audit.audit import Audit


def run_audit(arguments: argparse.Namespace) -> int:
    """Audit each source, print the answers and write the files asked for (--sarif, --best, --html); return the exit
    code. 0: nothing known prevents a run; 1: one cannot run (with --strict: or has a finding, an unread place or a part
    that is not predicted). With several sources --json, --html, --log and --best are refused. Raises InputError, after
    all other sources were printed, if one could not be read or an option is wrong.
    """
    from symconfig.api.existing import audit_blocks, audit_data, audit_page, compare

    problems, failed = arguments.problems, Problems()
    if len(arguments.source) > 1:
        alone = ("json", "html", "log", "best")
        refuse(arguments, alone, "is for one at a time", got=f"{len(arguments.source)} places")
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
        show(arguments, partial(audit_data, done, log), partial(audit_blocks, done, log))
        if html is not None:
            write_text(html, audit_page(done, source), arguments.force)
    if audits:
        _write(audits, outputs, arguments.force)
    failed.check()
    strictly = (done for done in audits if arguments.strict)
    faults = any(done.findings or done.reading.dark or done.unpredicted for done in strictly)
    return 1 if faults or not all(done.runs for done in audits) else 0


def _audited(arguments: argparse.Namespace, source: str, outside: Problems) -> Audit:
    """Return the audit of one source. outside: problems of common options. Raises InputError with these and its own."""
    from symconfig.api import existing as api_audit
    from symconfig.descriptor.load import load_cluster

    problems = Problems(outside.all)
    on_cluster = problems.read(load_cluster, arguments.cluster)
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
    """Return the keyword arguments of `audit`, but for `problems`, from the options that the command has; malformed
    --set variables are added to `problems` and become None.
    """
    names = (
        "gpus", "model", "seq_length", "megatron_version", "vocab_size", "prompt_length", "response_length", "root",
    )  # fmt: skip
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
    from symconfig.report.audit import sarif

    for name, path in outputs.items():
        if name == "sarif":
            text = masked(json_text(sarif(audits)))
        elif audits[0].better is None:
            note(f"{path} is not written: there is no plan")
            continue
        else:
            text = audits[0].better.to_json()
        write_text(path, text, force)


def run_adapt(arguments: argparse.Namespace) -> int:
    """Print the diff (or JSON), and with --in-place write the files if the whole plan is in them and their audit finds
    no error, or if --partial is given; return the exit code. 0: the whole plan is (or would be) in the files and their
    audit finds no error; 1: something is left to do by hand, or an error. The report goes to standard error. Raises
    InputError, also for --partial without --in-place and for writing a line of options.
    """
    from symconfig.api import existing

    problems = arguments.problems
    plan = problems.collect(lambda: plan_of(arguments.plan))
    given = problems.collect(lambda: variables(arguments.set))
    plan = problems.need(plan)
    if arguments.partial and not arguments.in_place:
        raise InputError("applies to writing alone", field="--partial", need="--in-place")
    more = {"variables": problems.need(given), "arguments": tuple(arguments.extra), "root": arguments.root}
    outcome = existing.adapt(arguments.source, plan, **more)
    written = arguments.in_place and bool(outcome.files) and (outcome.done or arguments.partial)
    if written:
        from symconfig.existing.adapt.files import write
        from symconfig.existing.launch.read import ARGUMENTS

        file = outcome.reading.file
        if file == ARGUMENTS:
            raise InputError("there is no file to write: the options were given as a line", field="--in-place")
        write(outcome.files, {text.file: text for text in outcome.reading.texts}, Path(file).parent)
    if arguments.json:
        print_json(outcome.to_dict(written) | {"plan": {"best": plan.best.to_dict()}})
    else:
        write_data(masked(outcome.diff))
    # What was done goes to standard error: standard output is the diff.
    from symconfig.report.grid import present, show, titled

    loads = f"Whether an old checkpoint loads: symconfig checkpoint DIR --plan {arguments.plan}"
    blocks = present(
        titled("Changed", (f"{change}." for change in outcome.changes)),
        titled("Not done", (f"{item}." for item in outcome.unplaced)),
        titled("An audit of the result finds errors", outcome.flaws),
        loads if outcome.changes else "",
        titled("Worth knowing", outcome.notes),
    )
    show([*blocks, _end(outcome, arguments.in_place, written)], sys.stderr)
    return 0 if outcome.done else 1


def _end(outcome: Adapted, in_place: bool, written: bool) -> str:
    """Return the closing sentence: the file has the plan's values already, the files written, why none was with
    --in-place, or that nothing was written (and that --in-place does, if files would change).
    """
    if not outcome.changes and not outcome.unplaced:
        return f"{outcome.reading.file} has the plan's values already; nothing was changed."
    if written:
        return f"Wrote {', '.join(outcome.files)}."
    if in_place and outcome.files:
        why = "an audit of the result finds errors" if outcome.flaws else "not all could be placed"
        return f"Nothing was written, because {why}; --partial writes what could be placed."
    return "Nothing was written; --in-place does." if outcome.files else "Nothing was written."


# Options of a job that say what a script does not.
_OF_SCRIPT = ("model", "cluster", "gpus", "seq_length", "megatron_version", "limits.memory_margin", "target")


def run_estimate(arguments: argparse.Namespace) -> int:
    """Print the estimate of a job's, or with --script a script's, layout, and with --fits-on of the same on the zoo's
    clusters; return 1 if it does not fit or the framework refuses it, else 0. Raises InputError, also for a job's
    options with --script, and for a script's without.
    """
    from symconfig.api.existing import of_all, of_job, of_script
    from symconfig.cli.job import request
    from symconfig.descriptor.load import load_cluster

    if arguments.script is None:
        refuse(arguments, ("root", "vocab_size"), "is of a script", need="--script FILE")
        job = request(arguments)
        price = partial(
            of_job,
            job.document,
            model_base=job.model_base,
            cluster_base=job.cluster_base,
            problems=arguments.problems.all,
        )
        named = job.document.data.get("cluster")
        result = of_all(price, named, fits_on=arguments.fits_on)
    else:
        others = [one.dest for name, one in job_options().items() if name not in _OF_SCRIPT]
        refuse(arguments, ("job", "pin", *others), "is for a layout by its pins, and a script states its own")
        given = supplied(arguments, arguments.problems)
        on_cluster = arguments.problems.read(load_cluster, arguments.cluster)
        arguments.problems.check()
        result = of_all(lambda on: of_script(arguments.script, on, given), on_cluster, fits_on=arguments.fits_on)
    show(arguments, result.to_dict, result.blocks)
    return 0 if result.runs else 1


COMMANDS = (
    Command(
        name="audit",
        does="read an existing launch script or config: what it will do, what is wrong, what would be better",
        examples=(
            "symconfig audit train.sh --cluster h100",
            'symconfig audit train.sh --cluster "h100 with network=4x200Gb/s" --set TP=4',
        ),
        rows=lambda: (
            option(
                "source",
                "FILE|ARGS",
                "launch script, YAML, DeepSpeed JSON, or a line of arguments, or several; nothing of it is executed",
                nargs="+",
            ),
            *script(),
            "what it does not state (without --cluster nothing is predicted)",
            *some("cluster", "gpus", "model", "seq_length", "megatron_version", "limits.memory_margin"),
            option("--vocab-size", "N", "tokens of the vocabulary", type=whole),
            option("--prompt-length", "N", "tokens of a prompt in the mean, of reinforcement learning", type=whole),
            option("--response-length", "N", "tokens of a response in the mean", type=whole),
            option("--log", "FILE", "what the running job prints: compared with the prediction, part by part"),
            "the answer",
            flag("--no-plan", "do not look for a better plan"),
            option("--best", "PLAN.json", "write the best plan there, for `symconfig adapt`"),
            option("--sarif", "FILE.sarif", "write what is wrong there, for code review"),
            HTML,
            flag("--force", "replace files that exist"),
            flag("--strict", "exit 1 on warnings, notes, and where not all was understood, too"),
        ),
        run=run_audit,
    ),
    Command(
        name="adapt",
        does="put a plan's values into an existing launch script or config",
        examples=("symconfig adapt train.sh --plan out", "symconfig adapt train.sh --plan out --in-place"),
        rows=lambda: (
            option(
                "source",
                "FILE|ARGS",
                "launch script, YAML, DeepSpeed JSON, or a line of arguments; nothing of it is executed",
            ),
            option("--plan", "PLAN.json", PLAN, required=True),
            flag("--in-place", "write the files, all or none (default: only show what would change)"),
            flag("--partial", "with --in-place: write even if something is left to do by hand, or an error is found"),
            *script(),
        ),
        run=run_adapt,
    ),
    Command(
        name="estimate",
        does="predict memory and time of a given layout or script, even if it does not fit",
        examples=(
            "symconfig estimate --model llama3.1-8b --cluster h100 --gpus 64 \\\n    --pin tp=2 --pin pp=2 --fits-on",
            "symconfig estimate --script train.sh --cluster h100",
        ),
        rows=lambda: (
            JOB_FILE,
            option("--script", "FILE", "price what this script or config starts, as `audit` reads it"),
            flag("--fits-on", "also show on which GPUs of `symconfig list clusters` it fits, and the step there"),
            *job(),
            script()[0],
            script()[-1],
            option("--vocab-size", "V", "tokens of the vocabulary, if the script does not state it", type=whole),
        ),
        run=run_estimate,
    ),
)

"""What each command does: one call into a room, then printing. Imported only when a command runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from symconfig.cli.files_options import wanted
from symconfig.cli.main import print_json, write_data
from symconfig.cli.shared import check_yaml, named_cluster, note, say, timeout, whole, write_text
from symconfig.errors import InputError, Problem, SymconfigError

if TYPE_CHECKING:
    from symconfig.api.planning import Problems
    from symconfig.measured.runs import Told


def plan(arguments: argparse.Namespace) -> int:
    """`symconfig plan`."""
    from symconfig.api import planning as api
    from symconfig.cli.job import as_options, request
    from symconfig.report.progress import Progress

    found = api.Problems()
    out = Path(arguments.out) if arguments.out is not None else None
    if out is not None:
        found.collect(lambda: api.check_free(out, arguments.force))
    top = found.collect(lambda: top_of(arguments.top))
    files = found.collect(lambda: wanted(arguments))
    asked = found.collect(lambda: request(arguments))
    if asked is None:
        raise InputError(found.all)
    try:
        with Progress(sys.stderr) as progress:
            result = api.solve(
                asked.document,
                model_base=asked.model_base,
                cluster_base=asked.cluster_base,
                top=top or 1,
                problems=(*found.all, *asked.problems),
                progress=progress,
            )
    except SymconfigError as error:
        raise type(error)([as_options(problem, asked) for problem in error.problems]) from None
    written = api.write(result.plan, out, files, force=arguments.force) if out is not None and files is not None else []
    if arguments.json:
        print_json(result.to_dict())
    else:
        from symconfig.report.table import blocks

        say(blocks(result.plan))
    if out is not None:
        wrote(out, written, arguments.json)
    return 0


def top_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1000):
        raise InputError(Problem("out of range", field="--top", got=text, need="a whole number from 1 to 1000"))
    return int(text)


def wrote(out: Path, written: Sequence[Path], as_json: bool) -> None:
    """Name the files that were written."""
    names = ", ".join(str(path.relative_to(out)) for path in written)
    text = f"wrote {len(written)} files into {out}: {names}"
    if as_json:
        note(text)
    else:
        sys.stdout.write("\n")
        say([text])


def render(arguments: argparse.Namespace) -> int:
    """`symconfig render`."""
    from symconfig.api import planning as api
    from symconfig.plans.file import load_plan

    out = Path(arguments.out)
    found = api.Problems()
    found.collect(lambda: api.check_free(out, arguments.force))
    loaded = found.collect(lambda: load_plan(Path(arguments.plan)))
    files = found.collect(lambda: wanted(arguments))
    if found.all or loaded is None or files is None:
        raise InputError(found.all)
    written = api.write(loaded, out, files, force=arguments.force)
    if arguments.json:
        print_json(
            {
                "schema": "symconfig.render/1",
                "target": files.of_plan(loaded),
                "folder": str(out),
                "files": [str(path.relative_to(out)) for path in written],
            }
        )
    else:
        wrote(out, written, False)
    return 0


def verify(arguments: argparse.Namespace) -> int:
    """`symconfig verify`: exit 1 when a check failed."""
    from symconfig.report.checks import blocks
    from symconfig.report.progress import Progress
    from symconfig.verify.checks import TIMEOUT_S, passed
    from symconfig.verify.checks import verify as run

    folder = Path(arguments.folder)
    if not folder.is_dir():
        what = "this is no folder" if folder.exists() else "there is no such folder"
        raise InputError(Problem(what, file=arguments.folder, hint="symconfig plan ... --out DIR"))
    limit_s = timeout(arguments.timeout) or TIMEOUT_S
    with Progress(sys.stderr) as progress:
        checks = run(
            folder,
            megatron=Path(arguments.megatron) if arguments.megatron else None,
            timeout_s=limit_s,
            progress=progress.say,
            build=arguments.build,
            trace=arguments.trace,
        )
    if arguments.json:
        print_json(
            {
                "schema": "symconfig.verify/1",
                "folder": str(folder),
                "passed": passed(checks),
                "checks": [asdict(check) for check in checks],
            }
        )
    else:
        say(blocks(folder, checks))
    return 0 if passed(checks) else 1


def explain(arguments: argparse.Namespace) -> int:
    """`symconfig explain`."""
    from symconfig.plans.file import load_plan
    from symconfig.report.explanation import blocks, to_dict
    from symconfig.report.timeline.seen import compared
    from symconfig.solve.explain import explain as formulas
    from symconfig.solve.restore import retraced

    loaded = load_plan(Path(arguments.plan))
    with retraced(arguments.plan):
        found, schedules = formulas(loaded), compared(loaded, loaded.best)
    if arguments.json:
        print_json(to_dict(loaded, found, schedules))
    else:
        say(blocks(loaded, found, schedules))
    return 0


def calibrate(arguments: argparse.Namespace) -> int:
    """`symconfig calibrate`."""
    from symconfig.api import planning as api
    from symconfig.descriptor.write import cluster_yaml
    from symconfig.measured.read import in_folder
    from symconfig.measured.runs import calibrations, runs
    from symconfig.report.calibration import blocks, to_dict
    from symconfig.report.progress import Progress

    found = api.Problems()
    out = Path(arguments.out) if arguments.out is not None else None
    if out is not None:
        found.collect(lambda: check_yaml("--out", out, arguments.force))
    cluster = found.collect(lambda: named_cluster(arguments.cluster)) if arguments.cluster is not None else None
    paths = [path for name in arguments.files for path in found.collect(partial(in_folder, Path(name))) or ()]
    for path in paths:
        if not path.exists():
            found.add(Problem("there is no such file", file=str(path)))
    told = _told(arguments, found)
    if found.all:
        raise InputError(found.all)
    with Progress(sys.stderr) as progress:
        progress.say("predicting the measured runs")
        measured = found.collect(lambda: runs(paths, cluster, told))
        if found.all or measured is None:
            raise InputError(found.all)
        if out is not None and len(measured.timed) > 1:
            names = ", ".join(known.name for known, _ in measured.timed)
            raise InputError(
                Problem(
                    "the runs are on several types of GPU, and a profile is of one",
                    field="--out",
                    got=names,
                    hint="--cluster " + measured.timed[0][0].name,
                )
            )
        rows = sum(len(timed) for _, timed in measured.timed)
        progress.say(f"fitting constants to {rows} run{'s' if rows > 1 else ''}")
        command = _as_command(paths, arguments)
        fitted = calibrations(measured, command, arguments.from_scratch)
    if out is not None:
        text = f"# {fitted[0].cluster.name} with constants fitted by: {command}\n{cluster_yaml(fitted[0].profile)}"
        write_text(out, text, arguments.force)
    if arguments.json:
        print_json(to_dict(fitted, measured.remarks))
    else:
        say(blocks(fitted, measured.remarks))
    if out is not None:
        note(f"wrote {out}")
    return 0


def _told(arguments: argparse.Namespace, found: Problems) -> Told:
    """The options that say what a log does not."""
    from symconfig.descriptor.load import load_model
    from symconfig.measured.runs import RECOMPUTE, Told

    gpus, micro, batch, length = (
        found.collect(partial(whole, f"--{name.replace('_', '-')}", getattr(arguments, name)))
        for name in ("gpus", "micro_batch_size", "global_batch_size", "seq_length")
    )
    model = found.collect(lambda: load_model(arguments.model)) if arguments.model is not None else None
    if arguments.recompute not in (None, *RECOMPUTE):
        need = ", ".join(RECOMPUTE)
        found.add(Problem("wrong value", field="--recompute", got=arguments.recompute, need=need))
    return Told(model, gpus, micro, batch, length, arguments.recompute)


def _as_command(paths: Sequence[Path], arguments: argparse.Namespace) -> str:
    """The command as a fitted constant names it: without folders, which are another person's."""
    words = ["symconfig calibrate", *(path.name for path in paths)]
    if arguments.cluster is not None:
        words += ["--cluster", Path(arguments.cluster).name]
    return " ".join([*words, "--from-scratch"] if arguments.from_scratch else words)


def import_config(arguments: argparse.Namespace) -> int:
    """`symconfig import`: the descriptor of a config.json, as YAML, or as JSON with --json."""
    from symconfig.descriptor.huggingface import descriptor_yaml
    from symconfig.descriptor.load import load_model

    path = Path(arguments.config)
    if path.suffix != ".json" and not path.is_dir():
        raise InputError(Problem("this is no config.json", file=arguments.config, need="a file that ends in .json"))
    # "./" keeps a file from being taken for a zoo name
    model = load_model(str(path if path.is_absolute() else Path.cwd() / path))
    text = descriptor_yaml(model)
    if arguments.out is not None:
        out = Path(arguments.out)
        write_text(out, text, arguments.force)
        note(f"wrote {out}")
    if arguments.json:
        print_json(model.model_dump(mode="json", by_alias=True, exclude_unset=True))
    elif arguments.out is None:
        write_data(text)
    return 0


def doctor(arguments: argparse.Namespace) -> int:
    """`symconfig doctor`: exit 1 when planning does not work here."""
    from symconfig.report.doctor import blocks, examine

    health = examine()
    if arguments.json:
        print_json(health.to_dict())
    else:
        say(blocks(health))
    return 0 if health.healthy else 1


def validate(arguments: argparse.Namespace) -> int:
    """`symconfig validate`: exit 1 when no row could be predicted."""
    from symconfig.api.planning import Problems
    from symconfig.measured.breakdown import breakdown
    from symconfig.measured.read import read
    from symconfig.measured.score import source
    from symconfig.report import validation, validation_plot, validation_row
    from symconfig.report.progress import Progress

    found = Problems()
    picture = Path(arguments.plot) if arguments.plot is not None else None
    if picture is not None and arguments.explain is not None:
        found.add(Problem("explains one row, of which there is no picture", field="--explain"))
    elif picture is not None:
        found.collect(lambda: validation_plot.check(picture))
    files = found.collect(lambda: read(arguments.files))
    if found.all or files is None:
        raise InputError(found.all)
    if arguments.explain is not None:
        row = breakdown(files, arguments.explain)
        if arguments.json:
            print_json(validation_row.to_dict(row))
        else:
            say(validation_row.blocks(row))
        return 0
    scores = []
    with Progress(sys.stderr) as progress:
        for name, content in files:
            progress.say(f"predicting {len(content.rows)} runs of {name}")
            scores.append(source(name, content))
    if arguments.json:
        print_json(validation.to_dict(scores))
    else:
        say(validation.blocks(scores))
    if picture is not None:
        validation_plot.plot(scores, picture)
        note(f"wrote {picture}")
    return 0 if any(item.rows for item in scores) else 1

"""`symconfig partition`: a split for every operator and tensor of a model, a program or a module."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from symconfig.cli.options import CHANGES, Command, Option, Row, changes, flag, option, options_of, repeated
from symconfig.cli.shared import folder, note, refuse, show, working
from symconfig.descriptor.document import Document
from symconfig.errors import InputError, Problem, reworded
from symconfig.format import json_text

if TYPE_CHECKING:
    from symconfig.api.partition_job import PartitionJob
    from symconfig.report.grid import Block


# Fields of a GraphJob that are options of the same name.
_FIELDS = {
    "the graph: one of these": "model program module",
    "where and how it runs": "cluster gpus mesh global_batch_size seq_length num_microbatches stages precision "
    "attention recompute memory_limit",
    "the search": "solver objective gamma timeout",
}

Answer = TypeVar("Answer")


def _rows() -> list[Row | Option | str]:
    """Return the command's options in the order of the help: the job file, _FIELDS, and those that are no field."""
    from symconfig.api.graph_source import GraphJob

    rows: list[Row | Option | str] = [
        option("job", "JOB.yaml", "options as keys of a file; those below override it", nargs="?")
    ]
    for one in options_of(GraphJob, _FIELDS).values():
        rows += [one.title, one]
    pins = GraphJob.model_fields["pins"].description
    return [
        *rows,
        "where and how it runs",
        CHANGES,
        flag("--no-flat", "weights are kept as they are used, never in smaller parts (ZeRO)"),
        repeated("--pin", "NAME=SPLIT", f"{pins}; repeatable"),
        "the search",
        flag("--rewrite", str(GraphJob.model_fields["rewrite"].description)),
        "the answer",
        flag("--baselines", "also data parallelism, ZeRO and tensor parallelism on the same graph"),
        option("--explain", "OPERATOR", "one operator in full: layouts and collectives"),
        option("--out", "DIR", "write partition.json, and placements.py for PyTorch's DTensor"),
        flag("--force", "replace what exists"),
    ]


def run_partition(arguments: argparse.Namespace) -> int:
    """Print the partition, or with --stages the pipeline, and write the files asked for; return 0. With --stages,
    --explain and --baselines are refused. Raises InputError with all problems (with the job file's line,
    or the option), InfeasibleError.
    """
    from symconfig.api.graph_source import GraphJob, pin_texts
    from symconfig.api.partition_job import partition_job
    from symconfig.descriptor.cluster import joined

    problems = arguments.problems
    folder(arguments)
    file = problems.collect(lambda: _file(arguments.job))
    if file is None:
        raise InputError(problems.all)
    changed = problems.collect(lambda: changes(arguments)) or {}
    fields = options_of(GraphJob, _FIELDS).values()
    options = {one.field: value for one in fields if (value := getattr(arguments, one.dest)) is not None}
    options |= {"flat": False} if arguments.no_flat else {}
    options |= {"rewrite": True} if arguments.rewrite else {}
    given = {**file.data, **options}
    if arguments.pin and isinstance(given.get("pins"), Mapping | list | None):
        given["pins"] = (*pin_texts(given.get("pins") or ()), *arguments.pin)
    if isinstance(given.get("cluster"), str):
        given["cluster"] = joined(given["cluster"], changed)
    request = problems.collect(lambda: partition_job(given, file))
    if given.get("stages") is not None:
        what = "cannot be had of a pipeline, whose stages have a partition each"
        refuse(arguments, ("explain", "baselines"), what, need="no --stages")
    if given.get("rewrite") is True and given.get("program") is None:
        what = f"would be of the rewritten graph, and the {'module' if given.get('module') else 'model'} runs its own"
        refuse(arguments, ("out",), what, need="no --rewrite, or a --program")

    def placed(problem: Problem) -> Problem:
        """Return the problem with the line of the job file if that has its field, unless an option set it."""
        known = replace(problem, field="pins") if problem.field == "pin" and not arguments.pin else problem
        return file.stated(known) if known.field in {*file.data} - {*options} else problem

    if problems.all or request is None:
        raise InputError([placed(problem) for problem in problems.all])
    with reworded(placed):
        data, shown = (_of_graph if request.stages is None else _of_stages)(arguments, request)
    show(arguments, lambda: data, lambda: shown)
    return 0


def _file(path: str | None) -> Document:
    """Return the document of a job file; `program` and `mesh` are prefixed with its folder if such a file is there.
    Raises InputError if it is no mapping.
    """
    from symconfig.descriptor.document import load_yaml_strict

    document = load_yaml_strict(Path(path)) if path is not None else Document({}, file="")
    if not isinstance(document.data, dict):
        raise InputError(document.problem("the file must hold `name: value` lines"))
    folder = Path(document.file).parent
    beside = {
        key: str(folder / value)
        for key in ("program", "mesh")
        if isinstance(value := document.data.get(key), str) and (folder / value).is_file()
    }
    return replace(document, data={**document.data, **beside})


def _of_graph(arguments: argparse.Namespace, request: PartitionJob) -> tuple[Any, Sequence[Block]]:
    """Return (JSON, blocks) of the solved partition; with --out write placements.py and partition.json.
    Raises InputError for an --explain that names no operator, InfeasibleError.
    """
    from symconfig.api.partition import solved_partition
    from symconfig.report.partition import blocks
    from symconfig.report.partition_json import to_dict
    from symconfig.solve.partition.pinned import operators

    result = _solved(solved_partition, request)
    explained = operators(result.found.net, arguments.explain, "--explain") if arguments.explain else ()
    report = result.contents(bool(arguments.baselines), explained)
    if arguments.out is not None:
        texts = {"placements.py": result.placements_file(), "partition.json": json_text(to_dict(report))}
        _put(Path(arguments.out), texts, arguments.force)
    return to_dict(report), blocks(report)


def _of_stages(arguments: argparse.Namespace, request: PartitionJob) -> tuple[Any, Sequence[Block]]:
    """Return (JSON, blocks) of the solved pipeline; with --out write partition.json. Raises InfeasibleError."""
    from symconfig.api.partition import solved_pipeline
    from symconfig.report.partition import stage_blocks
    from symconfig.report.partition_json import stages_dict

    report = _solved(solved_pipeline, request).contents()
    data = stages_dict(report)
    if arguments.out is not None:
        _put(Path(arguments.out), {"partition.json": json_text(data)}, arguments.force)
    return data, stage_blocks(report)


def _solved(solve: Callable[[PartitionJob], Answer], request: PartitionJob) -> Answer:
    with working() as progress:
        progress.say("partitioning")
        return solve(request)


def _put(out: Path, texts: Mapping[str, str], force: bool) -> None:
    """Write a partition's files into a folder, all or none, with a note; another names a placements.py that was there
    and is not written. Raises InputError if the folder exists, without `force`.
    """
    from symconfig.render.files import File, Files, write

    write(Files(tuple(File(name, text) for name, text in texts.items())), out, force)
    note(f"wrote {out}: {', '.join(sorted(texts))}")
    if "placements.py" not in texts and (out / "placements.py").exists():
        note("note: of an earlier partition: placements.py")


COMMANDS = (
    Command(
        name="partition",
        does="find a split for every operator and tensor of any graph",
        examples=("symconfig partition --model llama2-7b --cluster h100 --gpus 8 \\\n    --global-batch-size 16",),
        rows=_rows,
        run=run_partition,
    ),
)

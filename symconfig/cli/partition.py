"""`symconfig partition`: a split for every operator and tensor of a model, a program or a module."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from symconfig.cli.options import CHANGES, MODEL, adds, changes, flag, option, repeated
from symconfig.cli.shared import (
    PYTHON,
    as_changes,
    folder,
    note,
    output,
    refuse,
    show,
    working,
    write_text,
)
from symconfig.descriptor.document import Document
from symconfig.errors import InputError, Problem, reworded
from symconfig.format import json_text

if TYPE_CHECKING:
    from symconfig.api.graph_job import PartitionJob
    from symconfig.report.grid import Block

DOES = "find a split for every operator and tensor of any graph"
EXAMPLES = ("symconfig partition --model llama2-7b --cluster h100 --gpus 8 \\\n    --global-batch-size 16",)

_NAMES = (
    "model", "program", "module", "cluster", "gpus", "mesh", "global_batch_size", "seq_length", "solver", "objective",
    "memory_limit", "num_microbatches", "recompute", "precision", "attention", "gamma", "stages",
)  # fmt: skip
KEYS = (*_NAMES, "timeout", "flat", "pins")  # of a file
Answer = TypeVar("Answer")


add_options = adds(
    lambda: (
        option("job", "JOB.yaml", "options as keys of a file; those below override it", nargs="?"),
        "the graph: one of these",
        option("--model", "M", MODEL),
        option(
            "--program",
            "FILE.yaml",
            "operators over named dims, or a program of the zoo (docs/reference/programs.md)",
        ),
        option("--module", "PKG:FACTORY", "a PyTorch module that the factory makes; needs symconfig[module]"),
        "where and how it runs",
        option("--cluster", "C", "zoo name, or path of a descriptor"),
        CHANGES,
        option("--gpus", "N", "how many of its GPUs"),
        option("--mesh", "FILE.yaml", "levels instead of the cluster's"),
        option("--global-batch-size", "G", "sequences, or examples, per optimizer step"),
        option("--seq-length", "S", "tokens (default: the smaller of the model's and 4096)"),
        option("--num-microbatches", "K", "that a step is cut into (default: what divides the batch is tried)"),
        option(
            "--stages",
            "N",
            "also cut it into stages of a pipeline: 4, or 1..8 for the best (default: no cut)",
        ),
        option("--precision", "P", "bf16 or fp16 (default: bf16, or fp16 where the GPU has no bf16)"),
        option("--attention", "A", "of a model: flash (default, where the GPU has it) or unfused"),
        option("--recompute", "R", "none, full (of repeated parts), or auto (default) for the faster"),
        option("--memory-limit", "SIZE", "of tensors on a GPU, as 60GiB or 80%% (default: what a plan may use)"),
        flag("--no-flat", "weights are kept as they are used, never in smaller parts (ZeRO)"),
        repeated(
            "--pin",
            "NAME=SPLIT",
            "fix a tensor's dim, as layers.*.up.ffn=8, or an operator, as layers.*.up_proj=batch/2, ffn/4; repeatable",
        ),
        "the search",
        option("--solver", "S", "auto (default: adaptive, then exact), adaptive or exact"),
        option("--objective", "O", "time (default) or symtensor"),
        option("--gamma", "G", "of symtensor, whose cost is kept / G + moved (default: adapted until it fits)"),
        option("--timeout", "S", "seconds for the exact solver (default 10)"),
        "the answer",
        flag("--baselines", "also data parallelism, ZeRO and tensor parallelism on the same graph"),
        option("--explain", "OPERATOR", "one operator in full: layouts and collectives"),
        option("--placements", "FILE.py", "write placements for PyTorch's DTensor there"),
        option("--out", "DIR", "write partition.json and placements.py"),
        flag("--force", "replace what exists"),
    )
)


def run(arguments: argparse.Namespace) -> int:
    """Print the partition, or with --stages the pipeline, and write the files asked for; return 0. With --stages,
    --explain, --baselines and --placements are refused. Raises InputError with all problems (with the job file's line,
    or the option), InfeasibleError.
    """
    from symconfig.api.graph_job import partition_job
    from symconfig.api.problems import stated

    problems = arguments.problems
    folder(arguments)
    output(arguments, "placements", PYTHON)
    document = problems.collect(lambda: _file(arguments.job))
    changed = problems.collect(lambda: changes(arguments)) or {}
    given, words = _given(arguments, document, changed)
    request = problems.collect(lambda: partition_job(given)) if document is not None else None
    if given["stages"] is not None:
        what = "cannot be had of a pipeline, whose stages have a partition each"
        refuse(arguments, ("explain", "baselines", "placements"), what, need="no --stages")

    def placed(problem: Problem) -> Problem:
        """Return the problem with the line of the job file, or else the name of an option."""
        if document is not None and problem.field not in words:
            known = replace(problem, field="pins") if problem.field == "pin" else problem
            if known.field in document.data:
                return stated(known, document)
        return as_changes(problem, changed)

    if problems.all or request is None:
        raise InputError([placed(problem) for problem in problems.all])
    with reworded(placed):
        data, shown = (_of_graph if request.stages is None else _of_stages)(arguments, request)
    show(arguments, lambda: data, lambda: shown)
    return 0


def _file(path: str | None) -> Document:
    from symconfig.api.graph_source import graph_file

    return graph_file(path, KEYS) if path is not None else Document({}, file="")


def _given(
    arguments: argparse.Namespace, document: Document | None, changed: Mapping[str, str]
) -> tuple[dict[str, Any], set[str]]:
    """Return (arguments of `partition_job`, names of the options given): options override the file's keys; --pin is
    added after the file's pins; --no-flat overrides `flat`; timeout becomes limit_s.
    """
    known = document.data if document is not None else {}
    options = {name: getattr(arguments, name) for name in (*_NAMES, "timeout")}
    words = {name for name, value in options.items() if value is not None}
    given = {name: options[name] if name in words else known.get(name) for name in options}
    pins = [f"{name}={value}" for name, value in (known.get("pins") or {}).items()]
    flat = False if arguments.no_flat else known.get("flat", True)
    given |= {"flat": flat, "limit_s": given["timeout"], "changes": changed, "pins": [*pins, *arguments.pin]}
    return given, words | ({"pin"} if arguments.pin else set())


def _of_graph(arguments: argparse.Namespace, request: PartitionJob) -> tuple[Any, Sequence[Block]]:
    """Return (JSON, blocks) of the solved partition; with --out write placements.py and partition.json, with
    --placements that file. Raises InputError for an --explain that names no operator, InfeasibleError.
    """
    from symconfig.api.partition import answered
    from symconfig.report.partition import blocks
    from symconfig.report.partition_json import to_dict
    from symconfig.solve.partition.pinned import operators

    result = _solved(answered, request)
    explained = operators(result.found.net, arguments.explain, "--explain") if arguments.explain else ()
    report = result.contents(bool(arguments.baselines), explained)
    if arguments.out is not None:
        texts = {"placements.py": result.placements_file(), "partition.json": json_text(to_dict(report))}
        _put(Path(arguments.out), texts, arguments.force)
    if arguments.placements is not None:
        write_text(Path(arguments.placements), result.placements_file(), arguments.force)
    return to_dict(report), blocks(report)


def _of_stages(arguments: argparse.Namespace, request: PartitionJob) -> tuple[Any, Sequence[Block]]:
    """Return (JSON, blocks) of the solved pipeline; with --out write partition.json. Raises InfeasibleError."""
    from symconfig.api.pipeline import answered
    from symconfig.report.partition_stages import blocks, to_dict

    report = _solved(answered, request).contents()
    data = to_dict(report)
    if arguments.out is not None:
        _put(Path(arguments.out), {"partition.json": json_text(data)}, arguments.force)
    return data, blocks(report)


def _solved(solve: Callable[[PartitionJob], Answer], request: PartitionJob) -> Answer:
    with working() as progress:
        progress.say("partitioning")
        return solve(request)


def _put(out: Path, texts: Mapping[str, str], force: bool) -> None:
    """Write a partition's files into a folder, all or none, with a note; another names a placements.py that was there
    and is not written. Raises InputError if the folder is not empty and not `force`.
    """
    from symconfig.render.files import File, Files, write

    write(Files(tuple(File(name, text) for name, text in texts.items())), out, force)
    note(f"wrote {out}: {', '.join(sorted(texts))}")
    if "placements.py" not in texts and (out / "placements.py").exists():
        note("note: of an earlier partition: placements.py")

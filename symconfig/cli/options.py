"""Options that several commands have: their declaration, and what they ask for. Imported with every command line."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from symconfig.descriptor.task import PLAIN, WITH_OR_WITHOUT
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Wanted

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")


class Option(NamedTuple):
    """An option of a job. field: of the job's document, dotted; none: it is read in another way. read: of its text."""

    flag: str
    metavar: str
    help: str
    field: str = ""
    read: Callable[[str], Any] = str
    how: Mapping[str, Any] = MappingProxyType({})  # further arguments of argparse


def names(text: str) -> list[str]:
    """Split names at commas: a,b -> ["a", "b"]"""
    return [name for name in text.split(",") if name]


MODEL = "zoo name, id of Hugging Face, or path of a descriptor or config.json"
PLAN = "a plan, or the folder that holds it"
_REPEATED = MappingProxyType({"action": "append", "default": []})
_TARGET = Option(
    "--target", "T", "the format (default: the plan's framework); `symconfig list targets` lists them", "target"
)
_CHANGES = Option(
    "--set",
    "FIELD=VALUE",
    "a field of the cluster that differs: network=4x200Gb/s, gpu_memory=96GB; may be repeated",
    how=_REPEATED,
)
_PINS = "fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated"
_TASK = f"{', '.join(PLAIN)}, or with a section of the job {' or '.join(WITH_OR_WITHOUT)} (default: lora for adapters)"
_MARGIN = "share of the GPU's memory left free (default 0.04)"
_IMBALANCE = "busiest expert rank over the mean; 1: forced to balance"
_TARGETS = "all-linear (default), attention, mlp, or modules: q_proj,v_proj"
_IMAGES = "in the mean (default 0: text alone, without the tower)"
_TOKENIZER = "its folder or Hugging Face name (default: the model's)"
_IMAGE_SIZE = "along a side, where the tower takes any (default: the model's)"
_FROZEN = "none, tower (not its projector) or all (default: as the model says)"
_DATA = "prefixes or files, with a weight before each or none: 0.7 web 0.3 code (default: random tokens)"
_JOB, _RUN = "the job", "the run; a JOB.yaml has more in `training`"
# Every option of a job, in the order of the usage, behind the title under which `--help` shows it.
JOB: tuple[tuple[str, tuple[Option, ...]], ...] = (
    (
        _JOB,
        (
            Option("--model", "M", MODEL, "model"),
            Option("--cluster", "C", "zoo name, or path of a descriptor", "cluster"),
            _CHANGES,
            Option("--gpus", "N", "how many GPUs, all of them used; auto: the fewest that fit", "gpus", int),
            Option("--global-batch-size", "G", "sequences per optimizer step", "global_batch_size", int),
            Option("--seq-length", "S", "tokens (default: the smaller of the model's and 4096)", "seq_length", int),
            Option("--backend", "B", "megatron (default), deepspeed (default for adapters) or fsdp", "backend"),
            Option("--megatron-version", "V", "core_v0.12 to core_v0.19 (default), or main", "megatron_version"),
            Option("--task", "T", _TASK, "task"),
            Option(
                "--hf-weights",
                "W",
                "Hugging Face weights to start from (sft, lora: the model's)",
                "training.hf_weights",
            ),
        ),
    ),
    (
        "low-rank adapters, for --task lora",
        (
            Option("--lora-r", "R", "their rank (default 16)", "lora.r", int),
            Option("--lora-alpha", "A", "their scale times the rank (default: twice the rank)", "lora.alpha", float),
            Option("--lora-targets", "NAMES", _TARGETS, "lora.targets", names),
            Option("--lora-dropout", "P", "before each of them (default 0)", "lora.dropout", float),
            Option("--lora-method", "M", "lora (default), or qlora: frozen weights in 4 bits", "lora.method"),
        ),
    ),
    (
        "images, for a model with a vision tower",
        (
            Option("--images-per-sequence", "I", _IMAGES, "images.per_sequence", float),
            Option("--image-size", "PIXELS", _IMAGE_SIZE, "images.size", int),
            Option("--freeze-vision", "WHAT", _FROZEN, "images.frozen"),
        ),
    ),
    (
        _JOB,
        (
            Option("--precision", "P", "bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest", "precision"),
            Option("--attention", "A", "flash (default, where the GPU has it) or unfused", "attention"),
            Option("--optimizer", "O", "adam (default), adam8bit, adafactor, muon or sgd", "optimizer"),
            Option("--objective", "O", "time (default) or symtensor", "objective"),
            Option("--pin", "NAME=VALUE", _PINS, how=_REPEATED),
            Option(
                "--allow", "NAMES", "options that a plan may use though they are not stable, or all", "allow", names
            ),
            Option("--without", "NAMES", "options that the site lacks, as user_buffers,deepep", "without", names),
            Option("--edited", "NAMES", "fields of the model that your framework was changed to know", "edited", names),
            Option("--memory-margin", "SHARE", _MARGIN, "limits.memory_margin", float),
            Option(
                "--memory-risk", "P", "probability of running out of memory (default 0.05)", "limits.memory_risk", float
            ),
        ),
    ),
    (
        _RUN,
        (
            Option("--save", "DIR", "folder for checkpoints (default: none are written)", "training.save"),
            Option("--load", "DIR", "folder of the checkpoint to start from", "training.load"),
            Option("--data-path", "DATA", _DATA, "training.data_path", list, {"nargs": "+", "action": "extend"}),
            Option("--tokenizer", "NAME", _TOKENIZER, "training.tokenizer_model"),
            Option("--train-iters", "N", "optimizer steps (default 1000)", "training.train_iters", int),
            Option(
                "--lr", "LR", "highest learning rate (default: by task and size, as published)", "training.lr", float
            ),
        ),
    ),
    (_JOB, (Option("--expert-imbalance", "X", _IMBALANCE, "limits.expert_imbalance", float),)),
)
_EVERY = {one.flag: one for _, options in JOB for one in options} | {_TARGET.flag: _TARGET}
FIELDS = tuple(one for one in _EVERY.values() if one.field)  # the options that set a field


def _add(parser: argparse._ActionsContainer, *options: Option) -> None:
    for one in options:
        parser.add_argument(one.flag, metavar=one.metavar, help=one.help, **one.how)


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that are fields of a job."""
    groups = {title: parser.add_argument_group(title) for title in dict.fromkeys(title for title, _ in JOB)}
    for title, options in JOB:
        _add(groups[title], *options)


def add_some(parser: argparse._ActionsContainer, *flags: str) -> None:
    """Add some of a job's options, in the order of their flags."""
    _add(parser, *(_EVERY[flag] for flag in flags))


def add_changes(parser: argparse._ActionsContainer) -> None:
    """Add --set: the changes of the named cluster."""
    _add(parser, _CHANGES)


def changes(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the changes that --set makes to the cluster, `field: value`. Raises InputError."""
    from symconfig.descriptor.cluster_name import pairs

    return pairs(arguments.set, "--set")


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Add the options for how much of the answer is shown, and where its files go."""
    out = parser.add_argument_group("the answer")
    out.add_argument("--top", metavar="K", default="5", help="how many candidates to rank (default 5)")
    out.add_argument("--out", metavar="DIR", help="write plan.json, the launcher and the report there")
    out.add_argument("--force", action="store_true", help="write into a folder that exists")
    add_page(out)
    add_files(out)


def add_page(parser: argparse._ActionsContainer) -> None:
    """Add --html: the answer as a page."""
    parser.add_argument("--html", metavar="FILE", help="the answer as one page for a browser, which fetches nothing")


def add_files(parser: argparse._ActionsContainer) -> None:
    """Add --target, --launcher, --templates."""
    add = parser.add_argument
    _add(parser, _TARGET)
    add(
        "--launcher",
        metavar="L",
        action="append",
        help="what starts it, with its settings: slurm:partition=big (default: slurm); may be repeated",
    )
    add("--templates", metavar="DIR", help="templates of your own, over those of a target or as new ones")


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Read the options that choose the files. Raises InputError for names that there are none of."""
    from symconfig.api.planning import Wanted

    choice = Wanted.of(arguments.target, arguments.launcher, arguments.templates)
    choice.check()
    return choice


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--jobs", metavar="N", help="plans at once on this machine (default: one on each core)")


def add_script(parser: argparse.ArgumentParser, *, own_set: bool = True) -> None:
    """Add what a script finds where it runs, as a person says it. own_set: --set, too."""
    script = parser.add_argument_group("what its script finds where it runs")
    if own_set:
        script.add_argument(
            "--set",
            metavar="NAME=VALUE",
            action="append",
            default=[],
            help="a variable of the script's environment; what follows a lone -- are its arguments",
        )
    script.add_argument(
        "--root",
        metavar="DIR",
        help="read files below this folder that the script names (default: below the script's own)",
    )
    parser.set_defaults(extra=[])


def variables(pairs: list[str], source: str | None, instead: str) -> dict[str, str]:
    """Read NAME=VALUE pairs, as --set of a script has them. Raises InputError with all that are none. source: the
    script. instead: where a field of a cluster goes, with `{}` for the field and its value."""
    wrong = [pair for pair in pairs if not _VARIABLE.match(pair.partition("=")[0]) or "=" not in pair]
    if wrong:
        raise InputError(
            [Problem("is no variable with a value", field="--set", got=pair, need="NAME=VALUE") for pair in wrong]
        )
    values = dict(pair.split("=", 1) for pair in pairs)
    if meant := [name for name in values if _of_cluster(name, source)]:
        raise InputError([_no_variable(f"{name}={values[name]}", instead) for name in meant])
    return values


def _of_cluster(name: str, source: str | None) -> bool:
    """Tell whether a name is a field of a cluster, and no variable of the script."""
    from symconfig.descriptor.difference import SHORT
    from symconfig.descriptor.document import MAX_BYTES
    from symconfig.resources import content

    if name not in (*SHORT, "gpus_per_node", "levels"):
        return False
    try:
        text = content(source or "", MAX_BYTES).decode("utf-8", errors="replace")
    except InputError:  # a line of arguments, or what is said to be no file where it is read
        text = source or ""
    return re.search(rf"\$\{{?{name}\b", text) is None


def _no_variable(pair: str, instead: str) -> Problem:
    what = f"{pair.partition('=')[0]} is a field of a cluster, and --set is for variables of the script here"
    return Problem(what, field="--set", got=pair, hint=instead.replace("{}", pair))

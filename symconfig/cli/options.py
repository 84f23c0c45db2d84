"""Options that several commands have: their declaration, and what they ask for. Imported with every command line."""

from __future__ import annotations

import argparse
import re
from typing import TYPE_CHECKING

from symconfig.cli.shared import whole
from symconfig.descriptor.task import PLAIN, WITH_OR_WITHOUT
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Problems, Wanted
    from symconfig.runs.sweep.engines import Wanted as Engine

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options that are fields of a job."""
    what = parser.add_argument_group("the job")
    what.add_argument(
        "--model", metavar="M", help="zoo name, id of Hugging Face, or path of a descriptor or config.json"
    )
    what.add_argument("--cluster", metavar="C", help="zoo name, or path of a descriptor")
    add_changes(what)
    what.add_argument("--gpus", metavar="N", help="how many GPUs, all of them used; auto: the fewest that fit")
    what.add_argument("--global-batch-size", metavar="G", help="sequences per optimizer step")
    what.add_argument("--seq-length", metavar="S", help="tokens (default: the smaller of the model's and 4096)")
    what.add_argument("--backend", metavar="B", help="megatron (default) or deepspeed (default for adapters)")
    what.add_argument("--megatron-version", metavar="V", help="core_v0.12 to core_v0.19 (default), or dev")
    what.add_argument(
        "--task",
        metavar="T",
        help=f"{', '.join(PLAIN)} or, with a section of the job, {' or '.join(WITH_OR_WITHOUT)}; default: lora for "
        "adapters, else pretrain",
    )
    what.add_argument("--hf-weights", metavar="W", help="Hugging Face weights to start from (sft, lora: the model's)")
    add_lora(parser)
    add_images(parser)
    what.add_argument("--precision", metavar="P", help="bf16, fp16, fp8, mxfp8, nvfp4, or auto for the fastest")
    what.add_argument("--attention", metavar="A", help="flash (default, where the GPU has it) or unfused")
    what.add_argument("--optimizer", metavar="O", help="adam (default), adam8bit, adafactor, muon or sgd")
    what.add_argument("--objective", metavar="O", help="time (default) or symtensor")
    what.add_argument(
        "--pin",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated",
    )
    what.add_argument("--allow", metavar="NAMES", help="options that a plan may use though they are not stable, or all")
    what.add_argument("--without", metavar="NAMES", help="options that the site lacks, as user_buffers,deepep")
    what.add_argument("--edited", metavar="NAMES", help="fields of the model that your framework was changed to know")
    what.add_argument("--memory-margin", metavar="SHARE", help="share of the GPU's memory left free (default 0.04)")
    what.add_argument("--memory-risk", metavar="P", help="probability of running out of memory (default 0.05)")
    add_training(parser)
    what.add_argument("--expert-imbalance", metavar="X", help="busiest expert rank over the mean (default 1.0)")


def add_changes(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --set: the changes of the named cluster."""
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a field of the cluster that differs: network=4x200Gb/s, gpu_memory=96GB; may be repeated",
    )


def changes(arguments: argparse.Namespace) -> dict[str, str]:
    """Return the changes that --set makes to the cluster, `field: value`. Raises InputError."""
    from symconfig.descriptor.cluster_name import pairs

    return pairs(arguments.set, "--set")


def add_lora(parser: argparse.ArgumentParser) -> None:
    """Add the options of low-rank adapters; each of them means task lora."""
    add = parser.add_argument_group("low-rank adapters, for --task lora").add_argument
    add("--lora-r", metavar="R", help="their rank (default 16)")
    add("--lora-alpha", metavar="A", help="their scale times the rank (default: twice the rank)")
    add("--lora-targets", metavar="NAMES", help="all-linear (default), attention, mlp, or modules: q_proj,v_proj")
    add("--lora-dropout", metavar="P", help="before each of them (default 0)")
    add("--lora-method", metavar="M", help="lora (default), or qlora: frozen weights in 4 bits")


def add_images(parser: argparse.ArgumentParser) -> None:
    """Add the options of the images that a multimodal model is trained on."""
    add = parser.add_argument_group("images, for a model with a vision tower").add_argument
    add("--images-per-sequence", metavar="I", help="in the mean (default 0: text alone, without the tower)")
    add("--image-size", metavar="PIXELS", help="along a side, where the tower takes any (default: the model's)")
    add("--freeze-vision", metavar="WHAT", help="none, tower (not its projector) or all (default: as the model says)")


def add_training(parser: argparse.ArgumentParser) -> None:
    """Add the options that are fields of a job's `training`, of those that every run sets."""
    add = parser.add_argument_group("the run; a JOB.yaml has more in `training`").add_argument
    add("--save", metavar="DIR", help="folder for checkpoints (default: none are written)")
    add("--load", metavar="DIR", help="folder of the checkpoint to start from")
    add(
        "--data-path",
        metavar="DATA",
        nargs="+",
        action="extend",
        help="prefixes or files, with a weight before each or none: 0.7 web 0.3 code (default: random tokens)",
    )
    add("--tokenizer", metavar="NAME", help="its folder or Hugging Face name (default: the model's)")
    add("--train-iters", metavar="N", help="optimizer steps (default 1000)")
    add("--lr", metavar="LR", help="highest learning rate (default: by task and size, as published)")


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Add the options for how much of the answer is shown, and where its files go."""
    out = parser.add_argument_group("the answer")
    out.add_argument("--top", metavar="K", default="5", help="how many candidates to rank (default 5)")
    out.add_argument("--out", metavar="DIR", help="write plan.json, the launcher and the report there")
    out.add_argument("--force", action="store_true", help="write into a folder that exists")
    add_page(out)
    add_files(out)


def add_page(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --html: the answer as a page."""
    parser.add_argument("--html", metavar="FILE", help="the answer as one page for a browser, which fetches nothing")


def top_of(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1000):
        raise InputError(Problem("out of range", field="--top", got=text, need="a whole number from 1 to 1000"))
    return int(text)


def add_files(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add --target, --launcher, --templates."""
    add = parser.add_argument
    add("--target", metavar="T", help="the format (default: the plan's framework); `symconfig formats` lists them")
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


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the options of the engine that runs the plans."""
    add = parser.add_argument
    add("--jobs", metavar="N", help="plans at once (default: one on each core)")
    add("--engine", metavar="E", default="local", help="local (default), ray or dask")
    add("--address", metavar="A", help="of a Ray or Dask cluster that runs already (default: one is started here)")


def engine(arguments: argparse.Namespace, problems: Problems) -> Engine:
    """Return the engine that runs the plans. What is wrong about it is added to `problems`."""
    from symconfig.runs.sweep import engines

    jobs = problems.collect(lambda: whole("--jobs", arguments.jobs))
    wanted = engines.Wanted(arguments.engine, jobs, arguments.address)
    problems.collect(lambda: engines.check(wanted))
    return wanted


def add_script(parser: argparse.ArgumentParser) -> None:
    """Add what a script finds where it runs, as a person says it."""
    script = parser.add_argument_group("what its script finds where it runs")
    script.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help="a variable of the script's environment; what follows a lone -- are its arguments",
    )
    script.add_argument(
        "--assume-harmless",
        metavar="FILE|all",
        action="append",
        default=[],
        help="take it that this file, which cannot be read, changes nothing that the script says; may be repeated",
    )
    script.add_argument(
        "--root",
        metavar="DIR",
        help="read files below this folder that the script names (default: below the script's own)",
    )
    parser.set_defaults(extra=[])


def variables(pairs: list[str], source: str | None, instead: str) -> dict[str, str]:
    """Read NAME=VALUE pairs, as --set of a script has them. Raises InputError with all that are none.

    source: the script. instead: where a field of a cluster goes, with `{}` for the field and its value.
    """
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

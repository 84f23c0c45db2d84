"""Options of a job, which are the fields of the job's own class, and options that several commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

from symconfig.cli.shared import MOST_TOP, whole, within
from symconfig.errors import InputError, Problem

if TYPE_CHECKING:
    from symconfig.api.planning import Wanted

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
MODEL = "zoo name, id of Hugging Face, or path of a descriptor or config.json"
PLAN = "a plan, or the folder that holds it"
# Fields of a job that have an option, by the title under which `--help` shows them; a JOB.yaml has the others.
_FIELDS = {
    "the job": "model cluster gpus global_batch_size seq_length backend megatron_version task precision attention "
    "optimizer objective allow without edited limits.memory_margin limits.memory_risk limits.expert_imbalance",
    "low-rank adapters, for --task lora": "lora.r lora.alpha lora.targets lora.dropout lora.method",
    "images, for a model with a vision tower": "images.per_sequence images.size images.frozen",
    "the run; a JOB.yaml has more in `training`": "training.hf_weights training.save training.load training.data_path "
    "training.tokenizer_model training.train_iters training.lr",
}
# Flags that are not the field's name, behind its section's where that is neither `limits` nor `training`.
_FLAGS = {"images.size": "--image-size", "images.frozen": "--freeze-vision", "training.tokenizer_model": "--tokenizer"}
_METAVARS = {"training.save": "DIR", "training.load": "DIR", "training.data_path": "DATA"}
_PINS = "fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated"
_CHANGES = "a field of the cluster that differs: network=4x200Gb/s, gpu_memory=96GB; may be repeated"


def number(text: str) -> int | str:
    """Return a text as an integer; text that is none unchanged, for whoever validates it."""
    return int(text) if re.fullmatch(r"[-+]?[0-9]{1,100}", text) else text


class Option(NamedTuple):
    """An option that sets a field of a job, dotted. kind: int, float, str, or tuple for several."""

    title: str
    field: str
    flag: str
    kind: type
    help: str

    @property
    def dest(self) -> str:
        return self.flag[2:].replace("-", "_")

    def add(self, parser: argparse._ActionsContainer) -> None:
        metavar = _METAVARS.get(self.field) or {int: "N", float: "X", tuple: "NAMES"}.get(self.kind, "NAME")
        many: dict[str, Any] = {"nargs": "+", "action": "extend"} if metavar == "DATA" else {"type": self.read}
        parser.add_argument(self.flag, metavar=metavar, help=self.help.replace("%", "%%"), **many)

    def read(self, text: Any) -> Any:
        """Return the option's text as its kind; text that is no number stays text, for the job's validation. A list
        is split at commas.
        """
        if self.kind is tuple:
            return [name for name in text.split(",") if name]
        if self.kind is int:
            return number(text)
        try:
            return self.kind(text)
        except ValueError:
            return text


@cache
def job_options() -> dict[str, Option]:
    """Return {field: option} of a job's options in the order of the help. Cached."""
    from symconfig.descriptor.job import Job
    from symconfig.descriptor.validate import section as inner_section

    made = {}
    for title, names in {**_FIELDS, "": "target"}.items():
        for name in names.split():
            section, _, leaf = name.rpartition(".")
            owner: Any = Job if not section else inner_section(Job.model_fields[section].annotation)
            field = owner.model_fields[leaf]
            plain = leaf if section in ("", "limits", "training") else name.replace(".", "_")
            flag = _FLAGS.get(name, f"--{plain.replace('_', '-')}")
            made[name] = Option(title, name, flag, type_of(field.annotation), field.description or "")
    return made


def type_of(annotation: Any) -> type:
    """Return the type that an option's text is read as: the first of int, float and tuple in an annotation, else
    str.
    """
    return next((one for one in _types(annotation) if one in (int, float, tuple)), str)


def _types(annotation: Any) -> Iterator[type]:
    """Yield the types in an annotation, depth first; a tuple's items are not entered."""
    if get_origin(annotation) is tuple:
        yield tuple
    elif get_origin(annotation) is Annotated:
        yield from _types(get_args(annotation)[0])
    elif get_args(annotation):
        for each in get_args(annotation):
            yield from _types(each)
    elif isinstance(annotation, type):
        yield annotation


def add_job(parser: argparse.ArgumentParser) -> None:
    """Add the options of a job's fields, --set and --pin."""
    groups = {title: parser.add_argument_group(title) for title in _FIELDS}
    for option in job_options().values():
        if option.title:
            option.add(groups[option.title])
    add_changes(groups["the job"])
    groups["the job"].add_argument("--pin", metavar="NAME=VALUE", help=_PINS, action="append", default=[])


def add_some(parser: argparse._ActionsContainer, *fields: str) -> None:
    """Add the options of the named fields of a job."""
    for name in fields:
        job_options()[name].add(parser)


def add_changes(parser: argparse._ActionsContainer) -> None:
    """Add --set, a change of a cluster's field."""
    parser.add_argument("--set", metavar="FIELD=VALUE", help=_CHANGES, action="append", default=[])


def changes(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {field: value} of --set for the cluster; {} for commands without it. Raises InputError."""
    from symconfig.descriptor.cluster_name import pairs

    return pairs(getattr(arguments, "set", []), "--set")


def add_answer(parser: argparse.ArgumentParser) -> None:
    """Add --top, --out, --force, --html and the options of the files."""
    out = parser.add_argument_group("the answer")
    out.add_argument(
        "--top", metavar="K", type=within(1, MOST_TOP), default=5, help="how many candidates to rank (default 5)"
    )
    out.add_argument("--out", metavar="DIR", help="write plan.json, the launcher and the report there")
    out.add_argument("--force", action="store_true", help="write into a folder that exists")
    add_page(out)
    add_files(out)


def add_page(parser: argparse._ActionsContainer) -> None:
    """Add --html."""
    parser.add_argument("--html", metavar="FILE", help="the answer as one page for a browser, which fetches nothing")


def add_files(parser: argparse._ActionsContainer) -> None:
    """Add --target, --launcher, --templates."""
    add = parser.add_argument
    add_some(parser, "target")
    add(
        "--launcher",
        metavar="L",
        action="append",
        help="what starts it, with its settings: slurm:partition=big (default: slurm); may be repeated",
    )
    add("--templates", metavar="DIR", help="templates of your own, over those of a target or as new ones")


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Return the chosen target, launchers and templates. Raises InputError if one does not exist."""
    from symconfig.api.planning import Wanted

    choice = Wanted.of(arguments.target, arguments.launcher, arguments.templates)
    choice.check()
    return choice


def add_jobs(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--jobs", metavar="N", type=whole, help="plans at once on this machine (default: one on each core)"
    )


def add_script(parser: argparse.ArgumentParser, *, own_set: bool = True) -> None:
    """Add --root and, with `own_set`, --set for the script's environment; `extra` is set to []."""
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


def variables(pairs: list[str]) -> dict[str, str]:
    """Return {name: value} of --set for a script. Raises InputError for malformed pairs."""
    wrong = [pair for pair in pairs if not _VARIABLE.match(pair.partition("=")[0]) or "=" not in pair]
    if wrong:
        raise InputError(
            [Problem("is no variable with a value", field="--set", got=pair, need="NAME=VALUE") for pair in wrong]
        )
    return dict(pair.split("=", 1) for pair in pairs)

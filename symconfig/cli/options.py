"""Options of a job, which are the fields of the job's own class, and options that several commands have."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, get_args, get_origin

from symconfig.cli.shared import whole, within
from symconfig.errors import Problem, Problems
from symconfig.plans import MOST_TOP, TOP

if TYPE_CHECKING:
    from pydantic import BaseModel

    from symconfig.api.files import Wanted

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z_0-9]*\Z")
MODEL = "zoo name, id of Hugging Face, or path of a descriptor or config.json"
PLAN = "a plan, or the folder that holds it"
# Fields of a job that have an option, by the title under which `--help` shows them; a JOB.yaml has the others.
_FIELDS = {
    "the job": "model cluster gpus global_batch_size seq_length backend megatron_version task precision attention "
    "optimizer allow without edited limits.memory_margin limits.memory_risk limits.expert_imbalance",
    "low-rank adapters, for --task lora": "lora.r lora.alpha lora.targets lora.dropout lora.method",
    "images, for a model with a vision tower": "images.per_sequence images.size images.frozen",
    "the run; a JOB.yaml has more in `training`": "training.hf_weights training.save training.load training.data_path "
    "training.tokenizer_model training.train_iters training.lr",
}
# Flags that are not the field's name, behind its section's where that is neither `limits` nor `training`.
_FLAGS = {"images.size": "--image-size", "images.frozen": "--freeze-vision", "training.tokenizer_model": "--tokenizer"}
_METAVARS = {
    "training.save": "DIR", "training.load": "DIR", "training.data_path": "DATA", "program": "FILE.yaml",
    "module": "PKG:FACTORY", "mesh": "FILE.yaml", "memory_limit": "SIZE", "stages": "N",
}  # fmt: skip
_PINS = "fix or bound a choice: tp=8, pp=2..8, vpp=..4, recompute=full, zero=1; may be repeated"


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
        """Return the option's text as its kind; text that cannot be read so stays text, for the job's validation. A
        list is split at commas, without empty parts.
        """
        if self.kind is tuple:
            return [name for name in text.split(",") if name]
        if self.kind is int:
            return int(text) if re.fullmatch(r"[-+]?[0-9]{1,100}", text) else text
        try:
            return self.kind(text)
        except ValueError:
            return text


@cache
def job_options() -> dict[str, Option]:
    """Return {field: option} of a job's options in the order of the help. Cached."""
    from symconfig.descriptor.job import Job

    return options_of(Job, {**_FIELDS, "": "target"})


def options_of(model: type[BaseModel], fields: Mapping[str, str]) -> dict[str, Option]:
    """Return {field: option} of a model's fields, dotted within sections. fields: names with blanks between them, by
    title. An option's text is read as its annotation's first of int, float and tuple, else it stays text, as a limit
    of memory does, which has a unit.
    """
    from symconfig.descriptor.strict import section as inner_section

    made = {}
    for title, names in fields.items():
        for name in names.split():
            section, _, leaf = name.rpartition(".")
            owner: Any = model if not section else inner_section(model.model_fields[section].annotation)
            field = owner.model_fields[leaf]
            plain = leaf if section in ("", "limits", "training") else name.replace(".", "_")
            flag = _FLAGS.get(name, f"--{plain.replace('_', '-')}")
            kind = next((one for one in _types(field.annotation) if one in (int, float, tuple)), str)
            kind = str if name == "memory_limit" else kind
            made[name] = Option(title, name, flag, kind, field.description or "")
    return made


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


Row = tuple[str, dict[str, Any]]  # a name, and argparse's settings of it
Rows = Iterable["Row | Option | str"]  # a text is the title of the group of the rows behind it; "": of none


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A command. does: its line in the list of all. examples: command lines. rows: returns its options, called when its
    parser is made, as a job's take long to import. run: runs it and returns the exit code. first: the options that
    `--help` shows, if there are too many (`--help-all` shows all); (): all.
    """

    name: str
    does: str
    examples: tuple[str, ...]
    rows: Callable[[], Rows]
    run: Callable[[argparse.Namespace], int]
    first: tuple[str, ...] = ()

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options to the command's parser. A row that is text is the title of the group of those after it."""
        groups: dict[str, argparse._ActionsContainer] = {"": parser}
        place = groups[""]
        for row in self.rows():
            if isinstance(row, str):
                if row not in groups:
                    groups[row] = parser.add_argument_group(row)
                place = groups[row]
            elif isinstance(row, Option):
                row.add(place)
            else:
                place.add_argument(row[0], **row[1])


def option(name: str, metavar: str | None, help: str | None, **more: Any) -> Row:
    """Return an option, or an argument for a name without dashes. more: settings of argparse."""
    return name, {"metavar": metavar, "help": help, **more}


def flag(name: str, help: str) -> Row:
    """Return an option without a value."""
    return name, {"action": "store_true", "help": help}


def repeated(name: str, metavar: str, help: str, **more: Any) -> Row:
    """Return an option that may be repeated; [] by default."""
    return option(name, metavar, help, action="append", default=[], **more)


CHANGES = repeated(
    "--set", "FIELD=VALUE", "a field of the cluster that differs: network=4x200Gb/s, gpu_memory=96GB; may be repeated"
)
JOB_FILE = option("job", "JOB.yaml", "the job as a file; options below override it", nargs="?")
HTML = option("--html", "FILE", "the answer as one page for a browser, which fetches nothing")
ASSUME = option(
    "--assume", "FILE", "what rows leave out, by source (symconfig.assumptions/1); overrides the built-in assumptions"
)
JOBS = option("--jobs", "N", "plans made in parallel on this machine (default: one per core)", type=whole)


def job() -> list[Row | Option | str]:
    """Return the rows of a job's options: titles, each followed by the options of its group; --set and --pin are in
    "the job".
    """
    rows: list[Row | Option | str] = []
    for title in _FIELDS:
        rows += [title, *(one for one in job_options().values() if one.title == title)]
        if title == "the job":
            rows += [CHANGES, repeated("--pin", "NAME=VALUE", _PINS)]
    return rows


def some(*fields: str) -> list[Option]:
    """Return the options of the named fields of a job."""
    return [job_options()[name] for name in fields]


def changes(arguments: argparse.Namespace) -> dict[str, str]:
    """Return {field: value} of --set for the cluster; {} for commands without it. Raises InputError."""
    from symconfig.descriptor.cluster import pairs

    return pairs(getattr(arguments, "set", []), "--set")


def answer_rows() -> list[Row | Option | str]:
    """Return the rows of --top, --out, --force, --html and the options of `files`, under the title "the answer"."""
    return [
        "the answer",
        option(
            "--top",
            "K",
            f"how many candidates to rank (default {TOP})",
            type=within(int, 1, MOST_TOP, f"a whole number from 1 to {MOST_TOP}"),
            default=TOP,
        ),
        option("--out", "DIR", "write plan.json, the launcher and the report there"),
        flag("--force", "write into a folder that exists"),
        HTML,
        *files(),
    ]


def files() -> list[Row | Option]:
    """Return the rows of --target, --launcher and --templates."""
    launcher = "what starts it, with its settings: slurm:partition=big (default: slurm); may be repeated"
    return [
        *some("target"),
        option("--launcher", "L", launcher, action="append"),
        option("--templates", "DIR", "templates of your own, over those of a target or as new ones"),
    ]


def wanted(arguments: argparse.Namespace) -> Wanted:
    """Return the chosen target, launchers and templates. Raises InputError if one does not exist."""
    from symconfig.api.files import Wanted

    choice = Wanted.of(arguments.target, arguments.launcher, arguments.templates)
    choice.check()
    return choice


def script() -> list[Row | str]:
    """Return the rows of a script's options: --set for its environment, and --root. Only a command that has --root
    takes the script's own arguments behind `--`.
    """
    return [
        "the environment and files of the script",
        repeated(
            "--set", "NAME=VALUE", "a variable of the script's environment; the words after a lone -- are its arguments"
        ),
        option("--root", "DIR", "read files below this folder that the script names (default: below the script's own)"),
    ]


def variables(pairs: list[str]) -> dict[str, str]:
    """Return {name: value} of NAME=VALUE pairs (the last of a name). Raises InputError with all malformed ones."""
    wrong = partial(Problem, "is no variable with a value", field="--set", need="NAME=VALUE")
    malformed = (pair for pair in pairs if not _VARIABLE.match(pair.partition("=")[0]) or "=" not in pair)
    Problems(wrong(got=pair) for pair in malformed).check()
    return dict(pair.split("=", 1) for pair in pairs)

"""Tables of what targets are for, and of the variables of their templates. A function returns the parts of its page."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel

from symconfig.descriptor.cluster import ClusterDescriptor, Gpu
from symconfig.descriptor.job import Job, Limits
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Adapter
from symconfig.descriptor.task import PLAIN, Task
from symconfig.descriptor.training import WholeTraining
from symconfig.descriptor.tuning import LOSSES, LossName, Preference
from symconfig.errors import SymconfigError
from symconfig.render import targets as every_target
from symconfig.render.target import Target
from symconfig.resources import data_dir
from symconfig.runs.adapted import adapted
from symconfig.runs.best import unsupported
from tools.pages import DOCS, table

# --- tasks ------------------------------------------------------------------------------------------------------------


MODEL, CLUSTER = "llama3.1-8b", "h100"
_LENGTHS = {"mean": 900, "max": 3072}
SECTIONS: dict[Task, dict[str, Any]] = {
    "lora": {"lora": {}},
    # Of the losses of a task the first.
    **{means.task: {"preference": Preference.of(loss, 32).model_dump()} for loss, means in reversed(LOSSES.items())},
    "rl": {"rl": {"prompts": 64, "samples": 8, "prompt_length": _LENGTHS, "response_length": _LENGTHS}},
}


def targets() -> dict[str, str]:
    """Return the table of docs/reference/targets.md: tasks by target."""
    return {"tasks": _tasks()}


def rl() -> dict[str, str]:
    """Return the tables of docs/how-to/post-train.md: what targets support of a step, and what losses read."""
    return {"steps": _steps(), "losses": _losses()}


def able(target: Target, task: Task, **more: Any) -> bool:
    """Tell whether a target can be told a job of a task on the model."""
    fields: dict[str, Any] = {"model": MODEL, "cluster": CLUSTER, "gpus": 8, "global_batch_size": 64, "task": task}
    job = Job.model_validate(
        fields | target.assumes | {"target": target.name} | SECTIONS.get(task, {}) | more, strict=False
    )
    try:
        model, job = adapted(load_model(MODEL), job)
        return not unsupported(model, load_cluster(CLUSTER), job, target)
    except SymconfigError:
        return False


def _tasks() -> str:
    """Return the table of tasks by target, with what each target has of them."""
    head = ("target", "planned for", *PLAIN, "dpo, kto, reward: losses", "rl: algorithms, engines")
    return table(head, (_task_row(name, target) for name, target in every_target().items()))


def _task_row(name: str, target: Target) -> list[str]:
    plain = ["yes" if able(target, task) else "" for task in PLAIN]
    said: dict[Task, str] = {"dpo": "", "rl": ""}
    if target.compares:
        said["dpo"] = ", ".join(each for each in target.compares.losses if _able(target, each))
    if target.learns:
        said["rl"] = f"{', '.join(target.learns.algorithms)}; {', '.join(target.learns.engines)}"
    cells = [cell and cell + "; adapters" * able(target, task, lora={}) for task, cell in said.items()]
    return [name, target.assumes.get("backend", "megatron"), *plain, *cells]


def _able(target: Target, loss: LossName) -> bool:
    """Tell whether a target can be told a job of a loss."""
    return able(target, LOSSES[loss].task, preference=Preference.of(loss, 32).model_dump())


def _losses() -> str:
    """Return the table of what each loss of preferences reads."""
    head = ("loss", "task", "an example", "gives", "read besides, by the model itself", "by a reference")
    rows: dict[tuple[object, ...], list[str]] = {}
    for name, means in LOSSES.items():
        example = "chosen and rejected answers" if means.sequences > 1 else "an answer with a label"
        gives = "one number of a sequence" if means.scores else "logits"
        rows.setdefault((means.task, example, gives, means.read or "", means.reference or ""), []).append(name)
    return table(head, ((", ".join(names), *map(str, row)) for row, names in rows.items()))


def _steps() -> str:
    """Return the table of what each target has of a step of reinforcement learning."""
    head = ("target", "actor", "generates with", "placement", "away between phases", "reference", "network of rewards")
    head = (*head, "sleeps at level", "algorithms")
    rows = (
        (
            name,
            target.assumes.get("backend", "megatron"),
            ", ".join(learns.engines),
            ", ".join(learns.placements),
            "; ".join(" and ".join(each) or "nothing" for each in learns.away),
            learns.reference,
            "; ".join(f"{where} ({how.by})" for where, how in learns.rewards.items()),
            " or ".join(map(str, learns.sleep_levels)),
            ", ".join(learns.algorithms),
        )
        for name, target in every_target().items()
        if (learns := target.learns) is not None
    )
    return table(head, rows)


# --- templates --------------------------------------------------------------------------------------------------------


EXAMPLE = DOCS / "examples" / "templates"
VARIABLES = "variables.yaml"
Table = Mapping[str, tuple[str, str]]
# Descriptors, whose fields are what their files hold; Quantity: a number with its source.
DESCRIPTORS: Mapping[str, type[BaseModel]] = {
    "Job": Job,
    "Limits": Limits,
    "Training": WholeTraining,
    "Model": ModelDescriptor,
    "Adapter": Adapter,
    "Cluster": ClusterDescriptor,
    "Gpu": Gpu,
}


def variables() -> dict[str, Any]:
    """What holds for all targets."""
    return _read(data_dir("templates") / VARIABLES)


def own(target: str) -> Table:
    """The variables that are described for this target beside those."""
    return _read(data_dir("templates") / target / VARIABLES)


def _read(path: Path) -> dict[str, Any]:
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def templates() -> dict[str, str]:
    """Return the examples' files, and the variables of all templates and of each target."""
    known = variables()
    override = (EXAMPLE / "megatron" / "launch.sh.j2").read_text(encoding="utf-8")
    own_of = (
        f"## In `{name}`\n\n{source.does[0].upper()}{source.does[1:]}.\n\n{_variables(own(name))}"
        for name, source in every_target().items()
    )
    return {
        "launch.sh.j2": f"```jinja\n{override}```",
        "all": _variables(known["common"]),
        "most": _variables(known["often"]),
        "targets": "\n".join(own_of),
        "objects": "\n".join(f"### {name}\n\n{_variables(fields)}" for name, fields in known["objects"].items()),
        "descriptors": "\n".join(
            f"### {name}\n\n{_variables(dict(_descriptor_fields(kind)))}" for name, kind in DESCRIPTORS.items()
        ),
    }


def _descriptor_fields(kind: type[BaseModel]) -> Iterator[tuple[str, tuple[str, str]]]:
    """Of a descriptor, as templates name them."""
    for name, field in kind.model_fields.items():
        annotation = str(kind.__annotations__.get(name, field.annotation)).replace("|", "or")
        yield name, (f"`{annotation}`", field.description or "")


def _variables(rows: Table) -> str:
    cells = ((f"`{name}`", kind, meaning) for name, (kind, meaning) in rows.items())
    return table(("name", "type", "meaning"), cells) if rows else "Nothing more.\n"

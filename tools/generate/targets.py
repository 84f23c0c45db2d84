"""Tables of what targets are for. A function returns the parts of its page."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.task import PLAIN, Task
from symconfig.descriptor.tuning import LOSSES, LossName, Preference
from symconfig.errors import SymconfigError
from symconfig.render import targets as every_target
from symconfig.render.target import Target
from symconfig.runs.adapted import adapted
from symconfig.runs.best import unsupported
from tools.pages import table

MODEL, CLUSTERS = "llama3.1-8b", ("h100", "ascend-910b")
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
    """Return whether a target supports a job of a task on the model and one of the clusters."""
    return any(_on(cluster, target, task, **more) for cluster in CLUSTERS)


def _on(cluster: str, target: Target, task: Task, **more: Any) -> bool:
    fields: dict[str, Any] = {"model": MODEL, "cluster": cluster, "gpus": 8, "global_batch_size": 64, "task": task}
    job = Job.model_validate(
        fields | target.assumes | {"target": target.name} | SECTIONS.get(task, {}) | more, strict=False
    )
    try:
        model, job = adapted(load_model(MODEL), job)
        return not unsupported(model, load_cluster(cluster), job, target)
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

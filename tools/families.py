"""The families of models that transformers has: which are read, and which targets can be told their default model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from symconfig.descriptor.architectures.keys import class_of, families
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError, Problem
from symconfig.render import targets
from symconfig.runs.best import unsupported

# A small job on any cluster: what a target can be told of a model does not depend on either.
_CLUSTER, _GPUS, _SEQ_LENGTH = "h100", 8, 64
# Keys without which a class makes no model, from config.json of deepseek-ai/DeepSeek-V2, rednote-hilab/dots.llm1.base
# and zai-org/GLM-4.5-Air: its default is null, or heads of no whole width.
_NEEDED: Mapping[str, Mapping[str, Any]] = {
    "deepseek_v2": {"num_experts_per_tok": 6},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6},
    "glm4_moe": {"head_dim": 128},
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """A model_type. model: its class's default one; None: it is refused. refused: why it, or its default model, is.

    cannot: of a target, why it can be told no plan of that model.
    """

    name: str
    class_name: str
    model: ModelDescriptor | None
    refused: tuple[Problem, ...] = ()
    cannot: Mapping[str, tuple[Problem, ...]]

    def can(self, target: str) -> bool:
        """Return whether a target takes a model of the family without a change by hand."""
        return self.model is not None and not self.cannot.get(target, ())

    def by_hand(self, target: str) -> bool:
        """Return whether it can once something is changed in the framework's own code."""
        reasons = self.cannot.get(target, ())
        return bool(reasons) and all(problem.edit for problem in reasons)


@cache
def every() -> tuple[Family, ...]:
    """Return every decoder family that transformers has, and those that are read besides."""
    return tuple(_family(name) for name in sorted({*families(), *architectures()}))


def default_model(name: str) -> ModelDescriptor:
    """Return the model that the class of a family makes of an empty `config.json`. Raises InputError."""
    known = architectures().get(name)
    data: dict[str, Any] = {"model_type": name, **_NEEDED.get(name, {})}
    if known is not None and known.text_of is not None:
        data[known.text_of[0]] = {}
    return import_config(data, "config.json", name)


def _family(name: str) -> Family:
    called = class_of(name) or ""
    try:
        model = default_model(name)
    except InputError as error:
        return Family(name=name, class_name=called, model=None, refused=error.problems, cannot={})
    # Where it is downloaded from does not count. One copy for all targets: each would work out its layers.
    named = model.model_copy(update={"huggingface_id": f"publisher/{model.name}"})
    reasons_of = {target: reasons for target in targets() if (reasons := tuple(_reasons(named, target)))}
    return Family(name=name, class_name=called, model=model, cannot=reasons_of)


# Targets that say one model to the same framework stand in one column.
COLUMNS = {
    "Megatron-LM": ("megatron",),
    "Bridge": ("bridge",),
    "ms-swift": ("ms-swift",),
    "DeepSpeed": ("deepspeed", "transformers", "accelerate"),
    "LLaMA-Factory": ("llamafactory",),
}
READ_AS = (
    "Yes: the default model of the family's class can be planned and written for all targets of that column; a "
    "target's name: for that one alone; by hand: once something is changed in the framework's own code, which the "
    "refusal names."
)


def cells(family: Family) -> tuple[str, ...]:
    """Return what the targets of each column support of a family's default model."""
    return tuple(_cell(family, names) for names in COLUMNS.values())


def _cell(family: Family, names: Sequence[str]) -> str:
    able = [name for name in names if family.can(name)]
    if able:
        return "yes" if able == list(names) else " ".join(able)
    return "by hand" if any(family.by_hand(name) for name in names) else ""


def reason(family: Family) -> str:
    """Return why a family is refused, without the place in a file that nobody wrote."""
    first = family.refused[0]
    at = f"{first.field}: " if first.field and first.field != "model_type" else ""
    got = f" (got {first.got})" if first.got and at else ""
    return f"{at}{first.what}{got}"


def _reasons(model: ModelDescriptor, target: str) -> Iterator[Problem]:
    """Yield why a target can be told no plan of a model."""
    own = targets()[target]
    job = Job(model=model.name, cluster=_CLUSTER, gpus=_GPUS, global_batch_size=_GPUS, seq_length=_SEQ_LENGTH)
    try:
        yield from unsupported(model, _cluster(), job.model_copy(update={**own.assumes, "target": target}), own)
    except (InputError, InfeasibleError) as error:
        yield from error.problems


@cache
def _cluster() -> ClusterDescriptor:
    return load_cluster(_CLUSTER)

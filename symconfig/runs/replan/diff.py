"""The job of a plan with what is asked for anew."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.errors import SymconfigError
from symconfig.frameworks.backend import Medium
from symconfig.frameworks.known import BACKENDS, usual_backend
from symconfig.plans.plan import Plan
from symconfig.plans.sentences import stage_layers
from symconfig.render import deepspeed, megatron

_SECTIONS = ("pins", "limits", "training", "lora", "images")  # of which single names are asked for anew


def revised(old: Plan, wishes: Mapping[str, Any], released: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of the new job as plain data: those of `wishes`, the others as in the old job. Mappings of
    pins, limits, training, lora and images are merged. released: old pins that are dropped unless wished for. Defaults
    that followed from a replaced model, target or cluster are dropped, so that they are resolved again; `gpus` becomes
    "auto" if the old job searched for the fewest.
    """
    fields = old.job.model_dump(mode="json", by_alias=True, exclude_none=True)
    for name in _resolved(old, wishes):
        fields.pop(name, None)
    fields["training"] = _training(old, wishes)
    merged = {
        name: {**fields.get(name, {}), **wishes[name]} for name in _SECTIONS if isinstance(wishes.get(name), Mapping)
    }
    if old.search.fewest:
        fields["gpus"] = "auto"
    fields |= {**wishes, **merged}
    given = wishes.get("pins") or {}
    if isinstance(fields["pins"], dict):
        fields["pins"] = {
            name: value for name, value in fields["pins"].items() if name in given or name not in released
        }
    return fields


def _training(old: Plan, wishes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the old training as plain data, so that derived values can be derived again. With another model or task
    all derived values are left out; else all stay, and those wished for are no longer in `derived`.
    """
    data = old.job.training.model_dump(mode="json", exclude_none=True)
    derived, given = data.pop("derived"), wishes.get("training")
    if wishes.keys() & {"model", "task"}:
        return {name: value for name, value in data.items() if name not in derived}
    left = [name for name in derived if not isinstance(given, Mapping) or name not in given]
    return {**data, **({"derived": left} if left else {})}


def _resolved(old: Plan, wishes: Mapping[str, Any]) -> list[str]:
    """Return the names of the old job's fields to be resolved again, as they hold a default that a replaced input
    decided. These are backend, and task unless the job has `lora`, if the model is replaced; backend if the target is;
    precision if the cluster is. A field with another value than that default is not named.
    """
    adapter = old.model.adapter is not None
    usual: dict[str, Any] = {}
    if "model" in wishes:
        usual["backend"] = usual_backend(adapter).name
        if old.job.lora is None:  # else the adapters were the job's, and lie over the other model, too
            usual["task"] = "lora" if adapter else "pretrain"
    if "target" in wishes:
        usual["backend"] = old.job.backend  # the target's own
    if "cluster" in wishes:
        usual["precision"] = "bf16" if old.cluster.gpu.peak_flops.bf16 is not None else "fp16"
    return [name for name, value in usual.items() if getattr(old.job, name) == value]


def inputs(plan: Plan) -> dict[str, Any]:
    """Return the job of a plan with model, cluster and symconfig's version as plain data, without the training
    schedule. GPUs, batch, sequence length and backend are the best candidate's, because an edited plan's job may
    differ; release fields of other backends are left out.
    """
    best = plan.best
    job: dict[str, Any] = plan.job.model_dump(mode="json", by_alias=True, exclude={"training", "schema_"})
    job |= {
        "gpus": best.configuration.world_size,
        "global_batch_size": best.configuration.global_batch,
        "seq_length": best.configuration.seq_length,
        "backend": best.target.backend,
    }
    for backend in BACKENDS.values():
        if backend.name != best.target.backend and backend.releases.asked_by is not None:
            job.pop(backend.releases.asked_by)
    return {**job, "symconfig": plan.symconfig_version, "model": _named(plan.model), "cluster": _named(plan.cluster)}


def _named(descriptor: Any) -> dict[str, Any]:
    """Return a descriptor as plain data without schema, aliases and sources; a cluster's levels as {name: level}."""
    data: dict[str, Any] = descriptor.model_dump(mode="json", by_alias=True, exclude_none=True)
    if isinstance(descriptor, ClusterDescriptor):
        data["levels"] = {level["name"]: level for level in data["levels"]}
    return {name: _stated(value) for name, value in data.items() if name not in ("schema", "aliases", "source")}


def _stated(value: Any) -> Any:
    """Return a value without the `source` beside each `value`, recursively."""
    if not isinstance(value, dict):
        return value
    return {name: _stated(item) for name, item in value.items() if not (name == "source" and "value" in value)}


@dataclass(frozen=True, slots=True)
class Difference:
    """A field's dotted path and its two values; None where it is missing."""

    field: str
    before: Any
    after: Any

    @property
    def delta(self) -> float | None:
        """Return after - before; None unless both are numbers (booleans are not)."""
        if not (_number(self.before) and _number(self.after)):
            return None
        return float(self.after) - float(self.before)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def differences(before: Any, after: Any) -> tuple[Difference, ...]:
    """Return the differing fields of two nested mappings with dotted paths, in the order of `before`, then those only
    in `after`. A missing field equals None; lists are compared as one value.
    """
    one, other = dict(_leaves(before)), dict(_leaves(after))
    fields = dict.fromkeys((*one, *other))
    return tuple(
        Difference(field, one.get(field), other.get(field)) for field in fields if one.get(field) != other.get(field)
    )


def _leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, item in value.items():
        yield from _leaves(item, f"{path}.{key}" if path else str(key))


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences of two plans by section, in the order of display: inputs, training, parallel, batch, options,
    stages, predicted, time, memory, arguments.

    arguments: options of Megatron-LM or keys of DeepSpeed's JSON; empty for two frameworks. time, memory: predicted
    seconds and bytes by part; predicted: other predicted numbers.
    """

    before: Plan
    after: Plan
    sections: Mapping[str, tuple[Difference, ...]]

    @property
    def same(self) -> bool:
        """Return whether all sections are empty."""
        return not any(self.sections.values())


def diff(before: Plan, after: Plan) -> Diff:
    """Return the differences of two plans' best candidates and jobs by section of `Diff`; sections without any are
    empty.
    """
    one, other = before.best.to_dict(), after.best.to_dict()
    predicted = one["predicted"], other["predicted"]
    plain = (each.job.training.model_dump(mode="json", by_alias=True, exclude={"derived"}) for each in (before, after))
    sums = ({name: value for name, value in each.items() if isinstance(value, int | float)} for each in predicted)
    sections = {
        "inputs": differences(inputs(before), inputs(after)),
        "training": differences(*plain),
        **{name: differences(one[name], other[name]) for name in ("parallel", "batch", "options")},
        "stages": tuple(_stages(before, after)),
        "predicted": differences(*sums),
        **{name: _parts(*(each[name] for each in predicted)) for name in ("time", "memory")},
        "arguments": _arguments(before, after),
    }
    return Diff(before, after, sections)


def _parts(before: Mapping[str, float], after: Mapping[str, float]) -> tuple[Difference, ...]:
    """Return the differences of two breakdowns (seconds or bytes); a part missing in one counts as 0 there."""
    names = dict.fromkeys((*before, *after))
    return differences({name: before.get(name, 0.0) for name in names}, {name: after.get(name, 0.0) for name in names})


def _stages(before: Plan, after: Plan) -> Iterator[Difference]:
    """Yield a Difference `stage N` (from 0), of texts, for each pipeline stage with other layers; None where a plan
    lacks the stage.
    """
    for number, (one, other) in enumerate(zip_longest(before.best.stages, after.best.stages)):
        holds = [None if stage is None else stage_layers(stage) for stage in (one, other)]
        if holds[0] != holds[1]:
            yield Difference(f"stage {number}", *holds)


def _arguments(before: Plan, after: Plan) -> tuple[Difference, ...]:
    """Return the differing options or JSON keys, by what the framework is configured with. () if the frameworks differ,
    are configured in code, or a plan cannot be expressed.
    """
    backend = after.best.target.backend
    if before.best.target.backend != backend:
        return ()
    try:
        match BACKENDS[backend].told_by:
            case Medium.JSON:
                return differences(deepspeed.config(before), deepspeed.config(after))
            case Medium.OPTIONS:
                return differences(*(dict(_options(megatron.arguments(plan))) for plan in (before, after)))
            case Medium.CODE:
                return ()
    except SymconfigError:
        return ()


def _options(words: list[str]) -> Iterator[tuple[str, str]]:
    """Yield (option with its dashes, its values joined by spaces, or "on" without any) from a command's words.
    `--name=value` is one word, and so an option that is "on".
    """
    name, values = "", list[str]()
    for word in [*words, "--"]:
        if not word.startswith("--"):
            values.append(word)
            continue
        if name:
            yield name, " ".join(values) or "on"
        name, values = word, []

"""Fields that options say, over those of the model that somebody names, as one descriptor."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.meaning import flat, meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.recover import zoo
from symconfig.existing.recover.args import Fields

# How a model is trained rather than which it is: the options say it, whatever the named model has.
_TRAINING = frozenset(
    {"attention_dropout", "hidden_dropout", "initializer_range", "norm_eps", "experts.router_aux_loss_coef"}
)
_NEEDED = {"num_hidden_layers": "layers", "hidden_size": "hidden size", "num_attention_heads": "attention heads"}


def merged(out: Fields, *, agree: bool = False) -> ModelDescriptor:
    """Return the descriptor: the options' fields, and those of `out.base` where the options have no shape of their own.

    Raises InputError with all problems of `out` and the missing fields, or with what makes the model invalid. With
    `agree` also for each field that contradicts the named model.
    """
    base = out.base
    values = {field: value for field, value in out.values.items() if out.of_options(field)}
    if base is not None and not out.whole:
        values = flat(base) | values
    missing = [
        out.args.problem(
            f"the options do not say the model's {what}",
            *out.sources[field],
            hint="name the model, --model M" if base is None else None,
        )
        for field, what in _NEEDED.items()
        if field not in values
    ]
    if out.problems or missing:
        raise InputError([*out.problems, *missing])
    model = _validated(out, values)
    if agree and base is not None:
        wrong = _contradictions(out, model, base)
        if wrong:
            raise InputError(wrong)
    return model


def _validated(out: Fields, values: dict[str, Any]) -> ModelDescriptor:
    """Return the descriptor of dotted fields and their values; raises InputError with one problem per validation error.

    A missing latent.q_lora_rank is None.
    """
    fields: dict[str, Any] = {}
    for name, value in values.items():
        section, _, inner = name.rpartition(".")
        (fields.setdefault(section, {}) if section else fields)[inner] = value
    if "latent" in fields:
        fields["latent"].setdefault("q_lora_rank", None)
    try:
        return ModelDescriptor.model_validate(fields | _names(out, fields), strict=False)
    except ValidationError as error:
        raise InputError(
            [_problem(out, field, text) for item in error.errors(include_url=False) for field, text in _sentences(item)]
        ) from None


def _names(out: Fields, fields: dict[str, Any]) -> dict[str, Any]:
    """Return name, schema, source, dtype and model_type for a model without a name.

    The type is that of a similar model: deepseek_v3 with MLA, mixtral with experts, llama with a gated MLP, else gpt2.
    """
    experts, gated = fields.get("experts"), fields.get("gated_mlp", True)
    family = "deepseek_v3" if "latent" in fields else "mixtral" if experts else "llama" if gated else "gpt2"
    return {
        "schema": "symconfig.model/1",
        "name": f"{fields['num_hidden_layers']} layers of {fields['hidden_size']}",
        "source": "the options that it is trained with",
        "model_type": family,
        "torch_dtype": "float16" if out.args.switch("fp16") else "bfloat16",
    }


def _sentences(item: Any) -> list[tuple[str, str]]:
    """Return (field, text) for each fault in one of pydantic's errors.

    The text of a validator is split at "; ", and each part begins with the field it is about.
    """
    field = ".".join(map(str, item["loc"]))
    if item["type"] != "value_error":
        return [(field, str(item["msg"]).removeprefix("Input ").lower())]
    return [
        ((f"{field}." if field else "") + text.partition(" ")[0], text)
        for text in str(item["ctx"]["error"]).split("; ")
    ]


def _problem(out: Fields, field: str, what: str) -> Problem:
    sources = out.sources.get(field) or ("num_layers",)
    got = out.values.get(field)
    return out.args.problem(f"makes no model: {what}", *sources, got=got)


def _contradictions(out: Fields, model: ModelDescriptor, base: ModelDescriptor) -> list[Problem]:
    """Return a problem for each field that the options set otherwise than the named model.

    Fields of training only (dropout, initial values, norm epsilon, auxiliary loss) and fields without an option are
    skipped.
    """
    mine, theirs = meaning(model), meaning(base)
    contradicted = []
    for field in zoo.differing(mine, theirs):
        sources = out.sources.get(field)
        if field in _TRAINING or not sources:
            continue
        absent = "" if any(map(out.args.given, sources)) else ", and nothing is given"
        what = f"is not {base.name}'s {field}{absent}"
        need = str(theirs.get(field, "none"))
        contradicted.append(out.args.problem(what, *sources, got=mine.get(field, "none"), need=need))
    return contradicted

"""The model of a training log, as the arguments that Megatron printed describe it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from symconfig.descriptor.measurements import MeasuredModel
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.recover.model import described
from symconfig.existing.recover.namespace import as_mapping
from symconfig.measured.log_arguments import whole
from symconfig.measured.log_records import TrainingLog

_MEASURED = frozenset(MeasuredModel.model_fields) & frozenset(ModelDescriptor.model_fields)
_POSITIONS = ("rope", "learned", "alibi")
# The line about padding has the true size, however the tokenizer came by it.
_TOLD_BY_PADDING = ("padded_vocab_size", "tokenizer_type", "tokenizer_model")


def log_model(log: TrainingLog) -> ModelDescriptor:
    """Describe the log's model; raise InputError for a log without arguments or a model that cannot be described."""
    if not log.arguments:
        raise InputError(
            Problem("does not say which model it trains", file=log.path, field="model", hint="name the model")
        )
    names: dict[str, Any] = dict(as_mapping(log.arguments))
    if log.vocab_size:
        names |= {"vocab_size": log.vocab_size, **dict.fromkeys(_TOLD_BY_PADDING)}
    try:
        return described(names, seq_length=whole(names, "seq_length", "encoder_seq_length") or 1).model
    except InputError as error:
        raise InputError(
            [replace(problem, file=log.path, hint=problem.hint or "name the model") for problem in error.problems]
        ) from None


def check_model(log: TrainingLog, model: ModelDescriptor) -> None:
    """Check that this is the model of the log; raise InputError where it is not."""
    for argument, field in (("num_layers", "num_hidden_layers"), ("hidden_size", "hidden_size")):
        printed = whole(log.arguments, argument)
        if printed is not None and printed != getattr(model, field):
            what = f"is not the model of this log ({model.name})"
            raise InputError(
                Problem(what, file=log.path, field=argument, got=str(getattr(model, field)), need=str(printed))
            )


def row_fields(model: ModelDescriptor) -> dict[str, Any]:
    """Return the fields of a model that a measured row holds."""
    dump = model.model_dump(mode="json", exclude_none=True)
    fields = {name: dump[name] for name in _MEASURED if name in dump}
    fields |= dump.get("latent", {})
    if model.num_nextn_predict_layers:
        fields["mtp_num_layers"] = model.num_nextn_predict_layers
    if "experts" in dump:
        names = ("num_experts", "num_experts_per_tok", "moe_intermediate_size", "shared_expert_intermediate_size")
        fields |= {name: dump["experts"][name] for name in names}
        fields["first_k_dense"] = dump["experts"]["first_k_dense_replace"]
    if fields.get("position") not in _POSITIONS:
        fields.pop("position", None)
    return fields

"""ModernBERT's decoder (Ettin): a norm behind the embedding, none in the first layer, a projection before the head."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule, Values
from symconfig.descriptor.architectures.gpt import LAYERNORM
from symconfig.descriptor.model import ModelDescriptor


def _layers(values: Values, layers: int) -> list[str]:
    """Give all but the first of every few layers a window."""
    return [SLIDING if i % (values["global_attn_every_n_layers"] or 1) else FULL for i in range(layers)]


def _modernbert(reader: Reading) -> None:
    """Read local_attention, the tokens on both sides of an encoder's; a decoder sees half of them."""
    values, fields = reader.values, reader.fields
    number, both = fields["num_hidden_layers"], values["local_attention"]
    for name in ("sliding_window", "sliding_window_pattern"):
        fields.pop(name, None)
    windowed = [kind == SLIDING for kind in values["layer_types"] or _layers(values, number)]
    if not both or not any(windowed):
        return
    if type(both) is not int or both < 2:
        return reader.problem("out of range", "local_attention", got=repr(both), need="a whole number >= 2")
    fields["sliding_window"] = both // 2
    reader.key_of["sliding_window"] = "local_attention"
    if not all(windowed):
        fields["sliding_window_pattern"] = windowed


def _keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the window on both sides, rope's sections, which the class reads alone, and the padding token that it
    demands."""
    bases = {FULL: model.rope_theta, SLIDING: model.rope_local_base_freq or model.rope_theta}
    sections = {kind: {"rope_type": "default", "rope_theta": base} for kind, base in bases.items()}
    window = {"local_attention": 2 * model.sliding_window} if model.sliding_window else {}
    return {**window, "rope_parameters": sections, "pad_token_id": 0}


ARCHITECTURES: dict[str, Architecture] = {
    "modernbert-decoder": Architecture(
        constants={**LAYERNORM, "embedding_norm": True, "first_input_norm": False, "head_projection": True},
        defaults={"global_attn_every_n_layers": 3, "sliding_window": None},  # the latter follows from local_attention
        names={"decoder_bias": ("lm_head_bias",)},
        only={"classifier_bias": (False,), "classifier_activation": ("gelu",)},
        noted={
            "embedding_dropout": "embedding_dropout (dropout of the embeddings) is not modelled",
            "mlp_dropout": "mlp_dropout (before the MLP's last projection) is not modelled",
        },
        ignored=("initializer_cutoff_factor", "classifier_dropout", "cls_token_id", "head_dim",
                 "classifier_pooling", "deterministic_flash_attn", "sparse_pred_ignore_index", "sparse_prediction"),
        same_as={"global_rope_theta": "rope_theta", "local_rope_theta": "rope_local_base_freq"},
        layers=_layers,
        reads=("global_attn_every_n_layers",),
        rules=(Rule(_modernbert, ("local_attention",), _keys),),
    ),
}  # fmt: skip

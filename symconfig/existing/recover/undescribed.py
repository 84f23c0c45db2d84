"""Options that make a model which no descriptor describes: it is refused by their names, never guessed."""

from __future__ import annotations

from symconfig.existing.recover.args import Fields
from symconfig.existing.recover.mixers import PATTERN

_HYBRID = "layers of several kinds are read from --hybrid-layer-pattern alone"
_UNEVEN = "layers that differ from each other by a file are not described"
_VISION = "image models are not described"
_RETRO = "retrieval (RETRO) is not described"
_TWO = "models of an encoder and a decoder (T5), or of an encoder alone (BERT), are not described"

# Arguments that must stand at their default.
_DEFAULTS: dict[str, str] = {
    "hybrid_attention_ratio": _HYBRID,
    "hybrid_mlp_ratio": _HYBRID,
    "mtp_hybrid_override_pattern": _HYBRID,
    "heterogeneous_layers_config_path": _UNEVEN,
    "heterogeneous_layers_config_encoded_json": _UNEVEN,
    "decoder_num_layers": _TWO,
    "decoder_seq_length": _TWO,
    "bert_load": _TWO,
    "biencoder_projection_dim": _TWO,
    "retro_add_retriever": _RETRO,
    "retro_project_dir": _RETRO,
    "vision_pretraining": _VISION,
    "mrope_section": "rope of several axes, for images and video, is not described",
    "apply_residual_connection_post_layernorm": "a residual connection from behind the norm is not described",
    "enable_mhc_connections": "several residual streams (hyper-connections) are not described",
    "use_legacy_models": "Megatron-LM's legacy models are not described",
    "openai_gelu": "this form of GELU is Megatron-LM's legacy models' own",
    "onnx_safe": "this form of GELU is Megatron-LM's legacy models' own",
}
# Specifications of Megatron-LM's own for the layers of a pattern.
_STACKS = ("hybrid_stack_spec", "mamba_stack_spec")
# What costs nothing and changes no shape: read, and passed over in the prediction.
_PASSED: dict[str, str] = {
    "rotary_interleaved": "rope turns other pairs of channels, which costs the same",
}


def refuse_undescribed(out: Fields) -> None:
    args = out.args
    for dest, why in _DEFAULTS.items():
        if not _usual(out, dest):
            out.refuse(why, dest, got=args.word(dest))
    encoder, layers = args.value("encoder_num_layers"), args.value("num_layers")
    if encoder not in (None, layers):
        out.refuse(_TWO, "encoder_num_layers", got=encoder, hint="--num-layers, for a decoder")
    for dest, why in _PASSED.items():
        if not _usual(out, dest):
            out.assume(dest, "passed over", why, dest)
    spec = args.words("spec")
    if spec and spec[-1] in _STACKS and any(out.args.given(dest) for dest in PATTERN):
        return
    if spec and spec != ("local",) and out.base is None:
        out.refuse(
            "layers of a specification in Python are not read",
            "spec",
            got=" ".join(spec),
            hint="name the model, --model M",
        )
    elif spec and spec != ("local",) and out.base is not None:
        out.assume(
            "layers", f"those of {out.base.name}", "the specification in Python that builds them is not read", "spec"
        )


def _usual(out: Fields, dest: str) -> bool:
    if not out.args.given(dest):
        return True
    value = out.args.value(dest)
    return value in (None, False, 0, "", (), "[]")

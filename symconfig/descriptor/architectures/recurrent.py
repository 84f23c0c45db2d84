"""Families of recurrences that are no state space: RWKV-4, and xLSTM."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import LINEAR, Architecture, Kind, Reading, Values
from symconfig.descriptor.architectures.hybrid import UNLIMITED
from symconfig.descriptor.architectures.hybrid_rules import all_linear
from symconfig.descriptor.model import ModelDescriptor


def _wkv(values: Values) -> dict[str, Any]:
    width = values["attention_hidden_size"] or values["hidden_size"]
    return {"block": "wkv", "sizes": {"attention_hidden_size": width}}


def _rwkv(reader: Reading) -> None:
    """Read RWKV: channels are taken as the heads that it has not.

    The MLP is four times as wide where no width is given.
    """
    fields = reader.fields
    width = reader.values["attention_hidden_size"] or fields["hidden_size"]
    fields |= {"num_attention_heads": width, "num_key_value_heads": width, "head_dim": 1}
    fields["intermediate_size"] = reader.values["intermediate_size"] or 4 * fields["hidden_size"]


def _up(value: float, multiple: int) -> int:
    """Return the next multiple, as round_up_to_next_multiple_of of xLSTMConfig's file does."""
    return int((value + multiple - 1) // multiple * multiple)


def _mlstm(values: Values) -> dict[str, Any]:
    heads = values["num_heads"]
    widths = (int(values["hidden_size"] * values[key]) // heads for key in ("qk_dim_factor", "v_dim_factor"))
    sizes = dict(zip(("mlstm_key_dim", "mlstm_value_dim"), widths, strict=True))
    return {"block": "mlstm", "sizes": {**sizes, "chunk_size": values["chunk_size"]}}


def _xlstm(reader: Reading) -> None:
    values, fields = reader.values, reader.fields
    heads, hidden = values["num_heads"], fields["hidden_size"]
    for key, same in (("embedding_dim", hidden), ("num_blocks", fields["num_hidden_layers"])):
        if values[key] not in (None, same):
            return reader.problem("means the same as another key, and differs", key, got=values[key], need=str(same))
    for key in ("qk_dim_factor", "v_dim_factor"):
        if int(hidden * values[key]) % heads or values[key] <= 0:
            return reader.problem("its channels do not divide among the heads", key, got=values[key])
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    fields["head_dim"] = int(hidden * values["v_dim_factor"]) // heads
    fields["intermediate_size"] = _up(hidden * values["ffn_proj_factor"], values["ffn_round_up_to_multiple_of"])
    return None


def _xlstm_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return widths as factors of the stream's."""
    mixer, heads, hidden = model.mixer("mlstm"), model.num_attention_heads, model.hidden_size
    return {
        "num_heads": heads,
        "qk_dim_factor": heads * mixer.sizes["mlstm_key_dim"] / hidden,
        "v_dim_factor": heads * mixer.sizes["mlstm_value_dim"] / hidden,
        "chunk_size": mixer.sizes["chunk_size"],
        "ffn_proj_factor": model.intermediate_size / hidden,
        "ffn_round_up_to_multiple_of": 1,
    }


ARCHITECTURES: dict[str, Architecture] = {
    "rwkv": Architecture(
        constants={
            "position": "none",
            "norm": "layernorm",
            "embedding_norm": True,
            "gated_mlp": False,
            "hidden_act": "relu2",
            "mlp_token_shift": True,
        },
        names={"context_length": ("max_position_embeddings",)},
        ignored=("rescale_every",),  # at inference in half precision
        layers=all_linear,
        blocks={LINEAR: _wkv},
        reads=("attention_hidden_size", "intermediate_size"),
        kinds={"attention_hidden_size": Kind.COUNT, "intermediate_size": Kind.COUNT},
        rule=_rwkv,
    ),
    "xlstm": Architecture(
        constants={"position": "none", "max_position_embeddings": UNLIMITED, "tie_word_embeddings": False},
        names={"output_logit_soft_cap": ("final_logit_softcapping",), "norm_eps": ("norm_eps",)},
        # Transformers' model does not ask for the first; with the second its RMSNorms have biases, too.
        only={"add_out_norm": (True, False), "use_bias": (False,)},
        # Which kernels run, in which precision, and how weights lie: fused ones are as many.
        ignored=("autocast_kernel_dtype", "chunkwise_kernel", "eps", "gate_soft_cap", "inference_state_dtype",
                 "max_inference_chunksize", "mode", "norm_reduction_force_float32", "return_last_states",
                 "sequence_kernel", "step_kernel", "weight_mode",
                 "tie_word_embeddings"),  # which its class never does
        layers=all_linear,
        blocks={LINEAR: _mlstm},
        reads=("num_heads", "qk_dim_factor", "v_dim_factor", "chunk_size", "ffn_proj_factor",
               "ffn_round_up_to_multiple_of", "embedding_dim", "num_blocks"),
        kinds={"embedding_dim": Kind.COUNT, "num_blocks": Kind.COUNT},
        rule=_xlstm,
        writes=_xlstm_keys,
    ),
}  # fmt: skip

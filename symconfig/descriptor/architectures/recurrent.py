"""Families of recurrences that are no state space: RWKV-4, and xLSTM."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import LINEAR, Architecture, Kind, Reading, Rule
from symconfig.descriptor.architectures.hybrid import UNLIMITED
from symconfig.descriptor.architectures.hybrid_rules import all_linear
from symconfig.descriptor.architectures.mixer_keys import Block, Size, either
from symconfig.descriptor.model import ModelDescriptor

_WKV = Block("wkv", {"attention_hidden_size": either("attention_hidden_size", "hidden_size")})


def _rwkv(reader: Reading) -> None:
    """Read RWKV: channels are taken as the heads that it has not.

    The MLP is four times as wide where no width is given.
    """
    fields = reader.fields
    width = reader.values["attention_hidden_size"] or fields["hidden_size"]
    fields |= {"num_attention_heads": width, "num_key_value_heads": width, "head_dim": 1}
    fields["intermediate_size"] = reader.values["intermediate_size"] or 4 * fields["hidden_size"]


def _width(key: str) -> Size:
    """Return the width of a head, which a file states as a factor of the stream's for all heads."""
    return Size(
        (key,),
        lambda values: int(values["hidden_size"] * values[key]) // values["num_heads"],
        lambda model, width: {key: model.num_attention_heads * width / model.hidden_size},
    )


_MLSTM = Block(
    "mlstm",
    {"mlstm_key_dim": _width("qk_dim_factor"), "mlstm_value_dim": _width("v_dim_factor"), "chunk_size": "chunk_size"},
)


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
    multiple = values["ffn_round_up_to_multiple_of"]
    fields["intermediate_size"] = int((hidden * values["ffn_proj_factor"] + multiple - 1) // multiple * multiple)
    return None


def _xlstm_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the heads, and the MLP's width as a factor of the stream's."""
    return {
        "num_heads": model.num_attention_heads,
        "ffn_proj_factor": model.intermediate_size / model.hidden_size,
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
        blocks={LINEAR: _WKV},
        kinds={"attention_hidden_size": Kind.COUNT, "intermediate_size": Kind.COUNT},
        rules=(Rule(_rwkv, ("intermediate_size",), lambda model: {"intermediate_size": model.intermediate_size}),),
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
        blocks={LINEAR: _MLSTM},
        kinds={"embedding_dim": Kind.COUNT, "num_blocks": Kind.COUNT},
        rules=(Rule(_xlstm, ("num_heads", "ffn_proj_factor", "ffn_round_up_to_multiple_of", "embedding_dim",
                             "num_blocks"), _xlstm_keys),),
    ),
}  # fmt: skip

"""The order in which megatron-core's modules register their parameters, as data: the graph's operators by name.

Gradient buffers are filled in this order, reversed, so that it decides where buckets end. Read in core_v0.19.2
(gpt_model.py, transformer_layer.py, attention.py, multi_latent_attention.py, moe/, multi_token_prediction.py,
gpt_layer_specs.py), the same since core_v0.12; a module's own parameters come before its children's.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from symconfig.errors import SymconfigError
from symconfig.frameworks.megatron.behaviour import TransformerImpl

LAYERS = "layers"
# Of a chunk: blocks by kind, or an operator of one; the layers are all other blocks.
CHUNK = ("embedding", LAYERS, "head.final_norm", "mtp", "head.lm_head")

Order = tuple[tuple[str, ...], ...]  # runs of operators; a run is repeated for each local expert


@dataclass(frozen=True, slots=True)
class Registration:
    """orders: of the operators of any block; a block takes the first that names all of its operators with weights."""

    orders: tuple[Order, ...]

    def order(self, operators: Iterable[str]) -> dict[str, tuple[int, int]]:
        """Return each operator's run, and its place in it."""
        wanted = set(operators)
        for order in self.orders:
            places = {name: (index, place) for index, run in enumerate(order) for place, name in enumerate(run)}
            if wanted <= places.keys():
                return places
        raise SymconfigError(f"no order of registration names all of {', '.join(sorted(wanted))}")


_BEFORE = ("word_embedding", "position_embedding", "mtp_embedding_norm", "mtp_hidden_norm", "mtp_proj")
_BEHIND = ("mtp_final_norm", "final_norm", "lm_head")
AROUND = frozenset((*_BEFORE, *_BEHIND))  # operators that are part of no transformer layer
# Adapters of a fused layer's parts; its other ones are gate_proj and up_proj (peft/canonical_lora.py).
_PARTS = ("q_proj", "k_proj", "v_proj")


# Of blocks in attention's place: a module's own parameters, then those of its parts. Both orders have a gated delta
# net's weights beside attention's, since no block has both.
_DELTA_OWN, _MAMBA_OWN = ("dt_bias", "A_log"), ("conv1d", "dt_bias", "A_log", "D")


def _order(attention: tuple[str, ...], experts: Order) -> Order:
    def each(*names: str) -> Order:
        return tuple((name,) for name in names)

    return (
        *each(*_BEFORE),
        *each(*attention),
        *each("mlp_norm", "up_proj", "gate_up_proj", "gate_proj", "down_proj"),
        *each("router", "latent_down_proj", "latent_up_proj"),
        *experts,
        *each("shared_gate", "shared_up_proj", "shared_gate_up_proj", "shared_down_proj"),
        *each(*_BEHIND),
    )


# One MLP after the other (SequentialMLP), or one grouped product for all experts after the other (TEGroupedMLP).
_ONE_BY_ONE: Order = (("expert_up_proj", "expert_gate_up_proj", "expert_down_proj"),)
_GROUPED: Order = (("expert_up_proj",), ("expert_gate_up_proj",), ("expert_down_proj",))

# Sparse attention: the core comes first, and its indexer is part of it; no norm is part of a product.
_SPARSE = (
    "input_norm", "index_q_proj", "index_k_proj", "index_k_norm", "index_weights_proj", "o_proj", "q_down_proj",
    "q_up_proj", "kv_down_proj", "kv_up_proj", "q_low_norm", "kv_low_norm",
)  # fmt: skip

REGISTRATIONS: dict[TransformerImpl, Registration] = {
    "local": Registration(
        (
            _order(("input_norm", "sinks", "o_proj", "qkv_proj", *_PARTS, "q_norm", "k_norm"), _ONE_BY_ONE),
            _order(("input_norm", *_DELTA_OWN, "in_proj", "conv1d", "out_norm", "out_proj"), _ONE_BY_ONE),
            _order((*_MAMBA_OWN, "in_proj", "ssm_norm", "out_proj", "input_norm"), _ONE_BY_ONE),
            _order(
                (
                    "input_norm",
                    "o_proj",
                    "q_down_proj",
                    "q_up_proj",
                    "kv_down_proj",
                    "kv_up_proj",
                    "q_low_norm",
                    "kv_low_norm",
                ),
                _ONE_BY_ONE,
            ),
            _order(_SPARSE, _ONE_BY_ONE),
        )
    ),
    # A norm is part of the product behind it (TELayerNormColumnParallelLinear), but for that before latent attention.
    "transformer_engine": Registration(
        (
            _order(("sinks", "o_proj", "input_norm", "qkv_proj", *_PARTS, "q_norm", "k_norm"), _GROUPED),
            _order((*_DELTA_OWN, "input_norm", "in_proj", "conv1d", "out_norm", "out_proj"), _GROUPED),
            _order((*_MAMBA_OWN, "input_norm", "in_proj", "ssm_norm", "out_proj"), _GROUPED),
            _order(
                (
                    "input_norm",
                    "o_proj",
                    "q_down_proj",
                    "q_low_norm",
                    "q_up_proj",
                    "kv_down_proj",
                    "kv_low_norm",
                    "kv_up_proj",
                ),
                _GROUPED,
            ),
            _order(_SPARSE, _GROUPED),
        )
    ),
}

"""Prints how many parameters megatron-core's multi-token-prediction block has for a zoo model, on the meta device."""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor


class NoParameters(torch.nn.Module):
    """Stands in for the attention kernel, which has no weights and needs Transformer Engine for latent attention."""

    def __init__(self, *_: Any, **__: Any) -> None:
        super().__init__()


def config_of(model: ModelDescriptor) -> Any:
    from megatron.core.transformer.transformer_config import MLATransformerConfig

    latent, experts = model.latent, model.experts
    return MLATransformerConfig(
        num_layers=1,
        hidden_size=model.hidden_size,
        ffn_hidden_size=model.intermediate_size,
        num_attention_heads=model.num_attention_heads,
        q_lora_rank=latent.q_lora_rank,
        kv_lora_rank=latent.kv_lora_rank,
        qk_head_dim=latent.qk_nope_head_dim,
        qk_pos_emb_head_dim=latent.qk_rope_head_dim,
        v_head_dim=latent.v_head_dim,
        rope_type="rope",
        multi_latent_attention=True,
        qk_layernorm=True,
        normalization="RMSNorm",
        add_bias_linear=False,
        gated_linear_unit=True,
        num_moe_experts=experts.num_experts,
        moe_ffn_hidden_size=experts.moe_intermediate_size,
        moe_shared_expert_intermediate_size=experts.shared_expert_intermediate_size,
        moe_router_topk=experts.num_experts_per_tok,
        moe_router_score_function=experts.scoring_func,
        moe_router_enable_expert_bias=experts.e_score_correction_bias,
        moe_token_dispatcher_type="allgather",  # the all-to-all dispatcher opens a CUDA stream
        mtp_num_layers=model.num_nextn_predict_layers,
        use_cpu_initialization=True,
        perform_initialization=False,
    )


def main(name: str) -> None:
    from megatron.core import parallel_state
    from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec, get_gpt_mtp_block_spec
    from megatron.core.transformer import multi_latent_attention
    from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock

    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=1)
    parallel_state.initialize_model_parallel(create_gloo_process_groups=False)
    config = config_of(load_model(name))
    layer = get_gpt_layer_local_spec(
        num_experts=config.num_moe_experts, qk_layernorm=True, multi_latent_attention=True, normalization="RMSNorm"
    )
    layer.submodules.self_attention.submodules.core_attention = NoParameters
    spec = get_gpt_mtp_block_spec(config, layer, use_transformer_engine=False)
    # Without Transformer Engine its names are no classes, and isinstance() refuses them.
    absent = type("Absent", (), {})
    with (
        mock.patch.object(multi_latent_attention, "TELinear", absent),
        mock.patch.object(multi_latent_attention, "TEColumnParallelLinear", absent),
        mock.patch("torch.cuda.current_device", return_value="cpu"),
        torch.device("meta"),
    ):
        block = MultiTokenPredictionBlock(config, spec)
    print(sum(weight.numel() for weight in block.parameters()))


if __name__ == "__main__":
    main(sys.argv[1])

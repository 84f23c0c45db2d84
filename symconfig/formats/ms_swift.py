"""ms-swift's names of Megatron-LM's options.

Read in ms-swift 4.6.0, megatron/arguments/megatron_args.py and megatron/model/utils.py, and in mcore-bridge 1.6.5,
config/{parser,model_config}.py.
"""

from __future__ import annotations

from symconfig.descriptor.architectures.keys import words
from symconfig.formats.megatron import LINKED
from symconfig.formats.renamed import RUN_LINKED, Refusal, Renamed

EXTRA = "megatron_extra_kwargs"  # passes on fields of TransformerConfig without an argument of their own
# The architecture is config.json's and what is trained on is `dataset`, with the model's tokenizer. Layers are
# Transformer Engine's, fusions are mcore-bridge's own choice, packed sequences have no mask, throughput is always
# logged, checkpoints are torch_dist, or fsdp_dtensor with Megatron-FSDP. ddp_timeout is in seconds. What it goes on
# from is one checkpoint, of adapters or of all weights. The last rows come with an option that is refused.
_OMITTED = words(
    """
    group_query_attention position_embedding_type use_rope_scaling rope_type add_bias_linear add_qkv_bias
    max_position_embeddings moe_layer_freq vocab_size padded_vocab_size make_vocab_size_divisible_by swiglu quick_geglu
    glu_linear_offset activation_func_clamp_value mock_data tokenizer_type tokenizer_model split transformer_impl
    bias_dropout_fusion bias_gelu_fusion apply_rope_fusion create_attention_mask_in_dataloader log_throughput
    wandb_save_dir distributed_timeout_minutes load ckpt_format init_model_with_meta_device
    offload_modules cuda_graph_scope cuda_graph_modules cuda_graph_warmup_steps te_rng_tracker muon_momentum
    muon_nesterov muon_num_ns_steps muon_scale_mode muon_extra_scale_factor muon_tp_mode
    """
)
_WITHOUT = words(
    """
    exit_interval hybrid_layer_pattern moe_enable_deepep external_cuda_graph use_custom_fsdp grad_reduce_in_bf16
    tp_comm_overlap cuda_graph_impl reuse_grad_buf_for_mxfp8_param_ag megatron_fsdp_main_grads_dtype
    fine_grained_activation_offloading overlap_moe_expert_parallel_comm
    """
)
_OTHERS = words("moe_aux_loss_coeff moe_router_load_balancing_type mtp_loss_scaling_factor mtp_num_layers")
_UNREAD = words("attention_output_gate qk_l2_norm no_rope_freq moe_latent_size")  # of its models
_REFUSED: dict[str, Refusal] = {
    "attention_backend": ("attention", "its packed sequences go with fused attention only"),
}
MS_SWIFT = Renamed(
    names={dest: (dest,) for dest in RUN_LINKED.difference(_OMITTED, _REFUSED, _WITHOUT) | _OTHERS} | {
        "seq_length": ("max_length",),
        "fp8": ("fp8_format",),
        "fp4": ("fp4_format",),
        "num_virtual_stages_per_pipeline_rank": ("virtual_pipeline_model_parallel_size",),
        "eval_interval": ("eval_steps",),
        "save": ("output_dir",),
        "save_interval": ("save_steps",),
        "log_interval": ("logging_steps",),
        "data_path": ("dataset",),
        "manual_gc_interval": ("manual_gc_steps",),
        "moe_router_bias_update_rate": (f"{EXTRA}.moe_router_bias_update_rate",),
        "moe_flex_dispatcher_backend": (f"{EXTRA}.moe_flex_dispatcher_backend",),
        "moe_router_fusion": (f"{EXTRA}.moe_router_fusion",),
    },
    omitted=_OMITTED | LINKED - _UNREAD,
    refused=_REFUSED,
    refusal="ms-swift 4.6.0 has no option for it",
)  # fmt: skip

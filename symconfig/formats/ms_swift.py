"""ms-swift's names of Megatron-LM's options.

Read in ms-swift 4.6.0, megatron/arguments/megatron_args.py and megatron/model/utils.py, and in mcore-bridge 1.6.5,
config/{parser,model_config}.py.
"""

from __future__ import annotations

from symconfig.descriptor.architectures.keys import words
from symconfig.formats.megatron import LINKED
from symconfig.formats.renamed import Renamed

EXTRA = "megatron_extra_kwargs"  # passes on fields of TransformerConfig without an argument of their own
_SAME = words(
    """
    micro_batch_size global_batch_size train_iters optimizer adam_beta1 adam_beta2 adam_eps weight_decay clip_grad seed
    lr min_lr lr_decay_style lr_decay_iters lr_warmup_iters lr_wsd_decay_iters lr_wsd_decay_style fp16 bf16 fp8_recipe
    fp8_amax_history_len fp8_amax_compute_algo fp4_recipe accumulate_allreduce_grads_in_fp32 cp_comm_type
    tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size expert_model_parallel_size
    expert_tensor_parallel_size sequence_parallel decoder_first_pipeline_num_layers decoder_last_pipeline_num_layers
    account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split pipeline_model_parallel_layout
    microbatch_group_size_per_vp_stage use_distributed_optimizer overlap_grad_reduce overlap_param_gather
    overlap_p2p_comm gradient_accumulation_fusion use_precision_aware_optimizer main_params_dtype exp_avg_dtype
    exp_avg_sq_dtype sgd_momentum optimizer_cpu_offload optimizer_offload_fraction use_megatron_fsdp
    data_parallel_sharding_strategy recompute_granularity recompute_method recompute_num_layers recompute_modules
    moe_router_load_balancing_type moe_aux_loss_coeff moe_router_dtype moe_token_dispatcher_type moe_grouped_gemm
    moe_permute_fusion mtp_num_layers mtp_loss_scaling_factor eval_iters manual_gc fp8_param_gather
    cross_entropy_loss_fusion cross_entropy_fusion_impl tensorboard_dir wandb_project wandb_exp_name
    """
)
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
_UNREAD = words("attention_output_gate qk_l2_norm no_rope_freq moe_latent_size")  # of its models
_BUFFERS = "user buffers are of one size (Transformer Engine, copy_into_buffer), and its packed sequences are not"
MS_SWIFT = Renamed(
    names={dest: (dest,) for dest in _SAME} | {
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
    refused={
        "grad_reduce_in_bf16": ("grad_bytes", "it accumulates and reduces the gradients of bf16 in fp32",
                                ("grad_dtype=fp32",)),
        "tp_comm_overlap": ("overlap.tp_comm", _BUFFERS, ("user_buffers=off",)),
        "cuda_graph_impl": ("cuda_graphs", "its trainer captures no CUDA graphs", ("cuda_graphs=none",)),
        "reuse_grad_buf_for_mxfp8_param_ag": (
            "fp8_param_gather", "it has no argument for the buffer through which weights in mxfp8 are gathered",
            ("fp8_param_gather=off",)),
        "megatron_fsdp_main_grads_dtype": ("grad_bytes", "it leaves the gradients of Megatron-FSDP in bf16",
                                           ("zero=..1",)),
        "fine_grained_activation_offloading": ("activation_offload", "its trainer keeps activations on the GPU",
                                               ("activation_offload=0",)),
        "overlap_moe_expert_parallel_comm": (
            "overlap.moe_a2a", "its trainer does not hide the experts' all-to-all", ("moe_overlap=off",)),
        "attention_backend": ("attention", "its packed sequences go with fused attention only", ()),
    },
    refusal="ms-swift 4.6.0 cannot be told",
)  # fmt: skip

"""Megatron-Bridge's names of Megatron-LM's options: sections of its ConfigContainer (0.3.1, training/config.py)."""

from __future__ import annotations

from symconfig.descriptor.architectures.keys import words
from symconfig.formats.megatron import LINKED
from symconfig.formats.renamed import RUN_LINKED, Renamed

# Names of its mixed-precision recipes (training/mixed_precision.py), by a plan's precision.
RECIPES = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip

# Said by other fields: by num_query_groups, share_embeddings_and_output_weights, gated_linear_unit,
# bias_activation_fusion, grad_reduce_in_fp32, the recipe of mixed precision; or in train.py: the activation, the data
# set, the enumeration of kernels of attention. Tables of positions are as long as the sequence, and model.vocab_size is
# the padded one.
_OMITTED = words(
    """
    group_query_attention untie_embeddings_and_output_weights swiglu squared_relu quick_geglu bias_gelu_fusion
    accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 bf16 fp16 mock_data data_path split attention_backend
    create_attention_mask_in_dataloader max_position_embeddings padded_vocab_size
    """
)
# Section -> options whose field there has the option's own name; in `model`, those of links besides.
_SECTIONS = {
    "model": """transformer_impl position_embedding_type rope_type add_bias_linear add_qkv_bias glu_linear_offset
        activation_func_clamp_value make_vocab_size_divisible_by mtp_loss_scaling_factor apply_rope_fusion
        bias_dropout_fusion moe_layer_freq moe_router_dtype moe_router_bias_update_rate moe_router_load_balancing_type
        moe_aux_loss_coeff seq_length experimental_attention_variant linear_attention_freq linear_num_key_heads
        linear_num_value_heads linear_key_head_dim linear_value_head_dim linear_conv_kernel_dim""",
    "train": """micro_batch_size global_batch_size train_iters exit_interval eval_iters eval_interval manual_gc
        manual_gc_interval""",
    "optimizer": """optimizer lr min_lr weight_decay adam_beta1 adam_beta2 adam_eps sgd_momentum clip_grad
        use_precision_aware_optimizer optimizer_cpu_offload optimizer_offload_fraction use_distributed_optimizer
        overlap_param_gather""",
    "scheduler": "lr_decay_style lr_decay_iters lr_warmup_iters lr_wsd_decay_iters lr_wsd_decay_style",
    "ddp": """data_parallel_sharding_strategy overlap_grad_reduce use_distributed_optimizer overlap_param_gather
        use_megatron_fsdp""",
    "dist": "distributed_timeout_minutes use_megatron_fsdp",
    "mixed_precision": """fp8 fp4 fp8_recipe fp8_amax_history_len fp8_amax_compute_algo fp4_recipe fp8_param_gather
        reuse_grad_buf_for_mxfp8_param_ag""",
    "tokenizer": "tokenizer_type tokenizer_model vocab_size",
    "rng": "seed te_rng_tracker",
    "logger": "log_interval log_throughput tensorboard_dir wandb_project wandb_exp_name wandb_save_dir",
    "checkpoint": "ckpt_format save save_interval load",
}
SECTIONS = tuple(_SECTIONS)
_DTYPES = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_OWN = {section: words(names) for section, names in _SECTIONS.items()}
_OWN["model"] |= (LINKED | RUN_LINKED).difference(_OMITTED, _DTYPES, *_OWN.values())
BRIDGE = Renamed(
    names={dest: tuple(f"{section}.{dest}" for section, names in _OWN.items() if dest in names)
           for dest in frozenset().union(*_OWN.values())} | {
        "norm_epsilon": ("model.layernorm_epsilon",),  # this and the next until core_v0.15
        "apply_layernorm_1p": ("model.layernorm_zero_centered_gamma",),
        "num_experts": ("model.num_moe_experts",),
        "use_rope_scaling": ("model.rope_scaling",),
        "num_virtual_stages_per_pipeline_rank": ("model.virtual_pipeline_model_parallel_size",),
        "decoder_first_pipeline_num_layers": ("model.num_layers_in_first_pipeline_stage",),
        "decoder_last_pipeline_num_layers": ("model.num_layers_in_last_pipeline_stage",),
        "te_rng_tracker": ("rng.te_rng_tracker", "model.use_te_rng_tracker"),  # graphs are refused without the second
    },
    omitted=_OMITTED,
    refused=dict.fromkeys(_DTYPES, ("optimizer", "its field is a torch.dtype, which no override can say")),
    refusal="Megatron-Bridge",
    first=("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff"),
)  # fmt: skip

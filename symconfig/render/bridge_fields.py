"""Where Megatron-Bridge's ConfigContainer keeps what Megatron-LM's parser calls by an option.

Its sections subclass or repeat megatron-core's dataclasses, whose fields are named like the parser's: so a name here
is the option's `dest` (`frameworks.megatron.flags`) unless it is renamed. Read in megatron-bridge 0.3.1:
training/config.py, models/gpt_provider.py, models/mla_provider.py, models/gpt_oss/gpt_oss_provider.py.
"""

from __future__ import annotations

# Section -> options whose field there has the option's own name.
SECTIONS: dict[str, str] = {
    "model": """transformer_impl num_layers hidden_size ffn_hidden_size kv_channels num_attention_heads
        num_query_groups qk_layernorm multi_latent_attention q_lora_rank kv_lora_rank qk_head_dim
        qk_pos_emb_head_dim v_head_dim position_embedding_type rotary_base rotary_percent rope_type
        normalization add_bias_linear add_qkv_bias softmax_type glu_linear_offset activation_func_clamp_value
        attention_dropout hidden_dropout init_method_std make_vocab_size_divisible_by mtp_num_layers
        mtp_loss_scaling_factor apply_rope_fusion bias_dropout_fusion gradient_accumulation_fusion
        init_model_with_meta_device moe_ffn_hidden_size moe_shared_expert_intermediate_size
        moe_shared_expert_gate moe_router_topk moe_router_score_function moe_router_dtype
        moe_router_pre_softmax moe_router_num_groups moe_router_group_topk moe_router_topk_scaling_factor
        moe_router_enable_expert_bias moe_router_bias_update_rate moe_router_load_balancing_type
        moe_aux_loss_coeff moe_token_dispatcher_type moe_flex_dispatcher_backend moe_enable_deepep
        moe_grouped_gemm moe_permute_fusion moe_router_fusion overlap_moe_expert_parallel_comm
        tensor_model_parallel_size pipeline_model_parallel_size context_parallel_size cp_comm_type
        expert_model_parallel_size
        expert_tensor_parallel_size sequence_parallel tp_comm_overlap cuda_graph_impl cuda_graph_scope
        cuda_graph_warmup_steps cross_entropy_loss_fusion cross_entropy_fusion_impl pipeline_model_parallel_layout
        account_for_embedding_in_pipeline_split account_for_loss_in_pipeline_split overlap_p2p_comm
        microbatch_group_size_per_vp_stage recompute_granularity recompute_method recompute_num_layers
        recompute_modules fine_grained_activation_offloading offload_modules rotary_scaling_factor mscale
        mscale_all_dim layernorm_epsilon layernorm_zero_centered_gamma attention_output_gate moe_latent_size
        experimental_attention_variant linear_num_key_heads linear_num_value_heads linear_key_head_dim
        linear_value_head_dim linear_conv_kernel_dim""",
    "train": """micro_batch_size global_batch_size train_iters exit_interval eval_iters eval_interval manual_gc
        manual_gc_interval""",
    "optimizer": """optimizer lr min_lr weight_decay adam_beta1 adam_beta2 adam_eps sgd_momentum clip_grad
        use_precision_aware_optimizer optimizer_cpu_offload optimizer_offload_fraction""",
    "scheduler": "lr_decay_style lr_decay_iters lr_warmup_iters lr_wsd_decay_iters lr_wsd_decay_style",
    "ddp": "data_parallel_sharding_strategy overlap_grad_reduce",
    "rng": "seed",
    "mixed_precision": """fp8_recipe fp8_amax_history_len fp8_amax_compute_algo fp4_recipe fp8_param_gather
        reuse_grad_buf_for_mxfp8_param_ag""",
    "tokenizer": "tokenizer_type tokenizer_model",
    "dist": "distributed_timeout_minutes",
    "logger": "log_interval log_throughput tensorboard_dir wandb_project wandb_exp_name wandb_save_dir",
    "checkpoint": "ckpt_format save save_interval load",
}

# Options whose field has another name, or that are said in several places.
RENAMED: dict[str, tuple[str, ...]] = {
    "norm_epsilon": ("model.layernorm_epsilon",),  # this and the next until core_v0.15
    "apply_layernorm_1p": ("model.layernorm_zero_centered_gamma",),
    "num_experts": ("model.num_moe_experts",),
    "seq_length": ("model.seq_length",),  # train.py gives the data set the model's
    "num_virtual_stages_per_pipeline_rank": ("model.virtual_pipeline_model_parallel_size",),
    "decoder_first_pipeline_num_layers": ("model.num_layers_in_first_pipeline_stage",),
    "decoder_last_pipeline_num_layers": ("model.num_layers_in_last_pipeline_stage",),
    "use_distributed_optimizer": ("ddp.use_distributed_optimizer", "optimizer.use_distributed_optimizer"),
    "overlap_param_gather": ("ddp.overlap_param_gather", "optimizer.overlap_param_gather"),
    "use_megatron_fsdp": ("ddp.use_megatron_fsdp", "dist.use_megatron_fsdp"),
    "fp8": ("mixed_precision.fp8",),
    "fp4": ("mixed_precision.fp4",),
    "vocab_size": ("tokenizer.vocab_size",),
    "te_rng_tracker": ("rng.te_rng_tracker", "model.use_te_rng_tracker"),  # graphs are refused without the second
}

# Options that no field needs, and why.
SAID_OTHERWISE: dict[str, str] = {
    "group_query_attention": "num_query_groups says it",
    "max_position_embeddings": "tables of positions are as long as the sequence",
    "padded_vocab_size": "model.vocab_size is the padded one",
    "untie_embeddings_and_output_weights": "share_embeddings_and_output_weights, always written",
    "swiglu": "gated_linear_unit, and the activation in train.py",
    "squared_relu": "the activation in train.py",
    "no_rope_freq": "a list, from the model",
    "linear_attention_freq": "a list, from the model",
    "quick_geglu": "gated_linear_unit, and the activation in train.py",
    "bias_gelu_fusion": "bias_activation_fusion, always written",
    "moe_layer_freq": "a list, from the model",
    "window_size": "a pair, from the model",
    "window_attn_skip_freq": "a list, from the model",
    "bf16": "the recipe of mixed precision says it",
    "fp16": "the recipe of mixed precision says it",
    "accumulate_allreduce_grads_in_fp32": "mixed_precision.grad_reduce_in_fp32, always written",
    "grad_reduce_in_bf16": "mixed_precision.grad_reduce_in_fp32, always written",
    "mock_data": "the class of the data set says it",
    "data_path": "the data set is made in train.py",
    "split": "the data set is made in train.py",
    "attention_backend": "an enumeration, set in train.py",
    "create_attention_mask_in_dataloader": "the data set leaves the mask out by itself",
}

# Options whose field an override cannot fill, and why.
UNSAYABLE = dict.fromkeys(
    ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype"), "its field is a torch.dtype, which no override can say"
)

# Fields that are lists; other options of several values are given one here.
LISTS = frozenset({"recompute_modules", "offload_modules", "cuda_graph_scope"})
PATHS: dict[str, tuple[str, ...]] = {
    name: (f"{section}.{name}",) for section, names in SECTIONS.items() for name in names.split()
} | RENAMED

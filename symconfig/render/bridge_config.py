"""Plan -> the sections of Megatron-Bridge's ConfigContainer, from the options that Megatron-LM itself would get."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position
from symconfig.errors import InfeasibleError, Problem
from symconfig.frameworks.megatron import adapters, flags
from symconfig.frameworks.megatron.behaviour import MEGATRON
from symconfig.frameworks.megatron.bridge import BRIDGE_MEGATRON, fuses_rotations
from symconfig.frameworks.megatron.hybrid import DELTA
from symconfig.plans.plan import Plan
from symconfig.render import bridge_gemma, bridge_rope, megatron
from symconfig.render.refused import refused
from symconfig.render.weights import fine_tuned

Sections = dict[str, dict[str, Any]]

# Names of Bridge's mixed-precision recipes (training/mixed_precision.py).
RECIPES = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip
ORDER = (
    "model",
    "train",
    "optimizer",
    "scheduler",
    "ddp",
    "dist",
    "mixed_precision",
    "tokenizer",
    "rng",
    "logger",
    "checkpoint",
)
_READ = {"int": int, "float": float}
PRETRAINED = "pretrained"  # the folder of a converted checkpoint where the job names none


def version(plan: Plan) -> str:
    """Return the release of Megatron-LM whose options Bridge takes: the plan's, where Bridge goes with it."""
    planned = megatron.version(plan)
    return planned if planned in map(flags.resolve, BRIDGE_MEGATRON) else flags.resolve(BRIDGE_MEGATRON[-1])


def provider(model: ModelDescriptor) -> tuple[str, str]:
    """Return (module, class) of the model's configuration."""
    if bridge_gemma.fits(model):
        return bridge_gemma.PROVIDER
    if model.latent is not None:
        return "megatron.bridge.models.mla_provider", "MLAModelProvider"
    if bridge_rope.is_yarn(model):
        return "megatron.bridge.models.gpt_oss.gpt_oss_provider", "GPTOSSProvider"
    return "megatron.bridge.models.gpt_provider", "GPTModelProvider"


def sections(plan: Plan) -> Sections:
    """Return everything that Bridge is told, by section. Raises InfeasibleError with all that it cannot be told."""
    fields: dict[str, Any] = {}
    problems = list(_refused(plan))
    try:
        options = [option for group in megatron.groups_at(_plain(plan), version(plan)) for option in group.options]
    except InfeasibleError as error:
        raise InfeasibleError((*error.problems, *problems)) from None
    table = flags.flags(version(plan)).flags
    for option in options:
        name, joined, value = option[0].partition("=")
        flag, words = table[name], [value] if joined else list(option[1:])
        if flag.dest in SAID_OTHERWISE:
            continue
        if flag.dest not in PATHS:
            why = UNSAYABLE.get(flag.dest)
            what = f"Megatron-Bridge: {why}" if why else "Megatron-Bridge has no field for it"
            problems.append(
                Problem(
                    what, field="optimizer" if why else name, got=" ".join((name, *words) if why else words) or None
                )
            )
            continue
        fields |= dict.fromkeys(PATHS[flag.dest], _value(flag, words))
    if problems:
        raise InfeasibleError(problems)
    return _by_section({**_defaults(plan), **fields, **_always(plan)})


def _plain(plan: Plan) -> Plan:
    """Return the plan without what Bridge is told in other words than Megatron-LM's."""
    model = bridge_rope.plain(bridge_gemma.plain(plan.model))
    if model.latent is None:
        model = model.model_copy(update={"query_pre_attn_scalar": None})
    # Whether an MLP's gate is GELU's tanh form, which is what the fused kernel of a gated GELU computes (megatron-core
    # 0.16.1, fusions/fused_bias_geglu.py): there is no option for it, but a field.
    if model.hidden_act == "gelu_tanh" and model.gated_mlp and model.experts is None:
        model = model.model_copy(update={"hidden_act": "silu"})
    return plan if model == plan.model else replace(plan, model=model)


def _value(flag: flags.Flag, words: list[str]) -> Any:
    if flag.kind in ("true", "false"):
        return flag.kind == "true"
    read = _READ.get(flag.type or "", str)
    values = [read(word) for word in words]
    return values if flag.dest in LISTS and flag.nargs is not None else values[0]


def _by_section(fields: dict[str, Any]) -> Sections:
    result: Sections = {}
    for section in ORDER:
        mine = {path.partition(".")[2]: value for path, value in fields.items() if path.startswith(f"{section}.")}
        if mine:
            result[section] = mine
    return result


def _defaults(plan: Plan) -> dict[str, Any]:
    """Return what Megatron-LM's parser assumes and Bridge's classes do not; an option overrides it."""
    best = plan.best
    return {
        "model.apply_rope_fusion": fuses_rotations(plan.model),
        "model.bias_dropout_fusion": True,
        "model.persist_layer_norm": True,
        "model.cross_entropy_loss_fusion": False,
        "model.overlap_p2p_comm": best.parallel.vpp > 1,
        "mixed_precision.fp8_param_gather": False,
        **({"mixed_precision.first_last_layers_bf16": False} if best.options.precision == "fp8" else {}),
        "mixed_precision.reuse_grad_buf_for_mxfp8_param_ag": False,
    }


def _always(plan: Plan) -> dict[str, Any]:
    """Return what other options of Megatron-LM say, or the model by itself."""
    model, best, training = plan.model, plan.best, plan.training
    rows = MEGATRON.padded_vocab(model.vocab_size, best.parallel.tp)
    gelu = model.hidden_act in ("gelu", "gelu_tanh") and not model.gated_mlp
    fields: dict[str, Any] = {
        "model.vocab_size": rows,  # used as it stands, and not padded (training/setup.py)
        "model.share_embeddings_and_output_weights": model.tie_word_embeddings,
        "model.gated_linear_unit": model.gated_mlp,
        "model.bias_activation_fusion": (model.hidden_act != "relu2" and not gelu)
        or (model.hidden_act == "gelu_tanh" and model.mlp_bias),
        "optimizer.use_distributed_optimizer": best.options.zero_stage >= 1,
        "ddp.use_distributed_optimizer": best.options.zero_stage >= 1,
        "scheduler.start_weight_decay": training.weight_decay,
        "scheduler.end_weight_decay": training.weight_decay,
        "mixed_precision.grad_reduce_in_fp32": best.options.grad_bytes == 4,
    }
    overlapped = best.parallel.vpp > 1 and (best.options.overlap.pp_p2p or best.parallel.pp <= 2)
    fields |= {"model.overlap_p2p_comm": overlapped, "model.batch_p2p_comm": not overlapped}
    if model.experts is not None:
        fields["model.moe_layer_freq"] = [int(moe) for moe in model.moe_layers]
    if model.sliding_window is not None and any(model.sliding_layers):
        fields["model.window_size"] = [model.sliding_window - 1, 0]
        fields["model.window_attn_skip_freq"] = None if all(model.sliding_layers) else [*map(int, model.sliding_layers)]
    if model.rope_layers is not None and not all(model.rope_layers):
        fields["model.no_rope_freq"] = [int(not turned) for turned in model.rope_layers]
    if model.mixers:
        fields["model.linear_attention_freq"] = [int(kind.mixer == DELTA) for kind in model.kind_of_layer]
    if model.latent is None and model.query_pre_attn_scalar is not None:
        fields["model.softmax_scale"] = model.query_pre_attn_scalar**-0.5
    for own in (bridge_rope.fields(model), bridge_gemma.fields(model)):
        fields |= {f"model.{name}": value for name, value in own.items()}
    if fine_tuned(plan):
        fields["checkpoint.pretrained_checkpoint"] = PRETRAINED
        if best.parallel.cp > 1:  # some ranks may have no token of a loss (training/config.py, validate)
            fields |= {"model.calculate_per_token_loss": True, "ddp.average_in_collective": False}
    return fields


def peft(plan: Plan) -> dict[str, Any]:
    """Return the arguments of the adapters' class. They are no overrides: Bridge takes an object that can be called for
    none (training/utils/omegaconf_utils.py, _is_omegaconf_problematic).
    """
    adapter, targets = plan.model.adapter, adapters.targets(plan.model)
    if adapter is None or targets is None:
        return {}
    alpha = int(adapter.lora_alpha) if adapter.lora_alpha.is_integer() else adapter.lora_alpha
    return {"target_modules": list(targets.modules), "dim": adapter.r, "alpha": alpha, "dropout": adapter.lora_dropout}


def _refused(plan: Plan) -> Iterator[Problem]:
    """Yield what Bridge cannot be told beside what no Megatron can."""
    model, best = plan.model, plan.best
    for _, reason in adapters.refusals(model):
        yield Problem(reason, field="adapter", hint="--backend deepspeed")
    of_adapters = (one for one in refused(plan, megatron.NAME, version(plan)) if one.constraint.asks & {"adapted"})
    yield from (one.problem() for one in of_adapters)
    if model.position is Position.LEARNED and best.batch.seq_length != model.max_position_embeddings:
        yield Problem(
            "Megatron-Bridge makes a table of positions as long as the sequence",
            field="seq_length",
            got=str(best.batch.seq_length),
            need=str(model.max_position_embeddings),
        )
    yield from bridge_rope.refused(model)
    if plan.best.target.backend != megatron.NAME:
        yield Problem(
            "the plan was made for DeepSpeed, whose ZeRO and parallelism Megatron-Bridge does not have",
            field="backend",
            got=plan.best.target.backend,
            hint="symconfig plan --backend megatron",
        )


def overrides(config: Sections) -> list[str]:
    """Return the sections as overrides on a command line, in Hydra's grammar."""
    return [f"{section}.{name}={_hydra(value)}" for section, fields in config.items() for name, value in fields.items()]


def _hydra(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return "[" + ",".join(map(_hydra, value)) + "]"
    if not isinstance(value, str):
        return repr(value)
    if value.replace("_", "").isalnum() and not value[0].isdigit() and value not in ("null", "true", "false"):
        return value
    # Backslashes are doubled before a quote, and only there (hydra-core 1.3.2, OverrideLexer.g4: QUOTED_VALUE).
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + match[2].replace("'", "\\'"), value) + "'"


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

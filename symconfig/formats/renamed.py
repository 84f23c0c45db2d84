"""Megatron-LM's options under the names of programs that build on it: Megatron-Bridge and ms-swift.

Read in Megatron-Bridge 0.3.1 (training/config.py, ConfigContainer), ms-swift 4.6.0
(megatron/arguments/megatron_args.py, megatron/model/utils.py) and mcore-bridge 1.6.5 (config/{parser,model_config}.py).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import Problem
from symconfig.formats.layer_pattern import layer_pattern
from symconfig.formats.links import destinations
from symconfig.formats.megatron import LINKED
from symconfig.formats.megatron_run import RUN
from symconfig.frameworks.megatron.flags import FlagTable, parsed

Refusal: TypeAlias = tuple[str, str]  # the plan's field, and why the program cannot express it
RUN_LINKED = frozenset(dest for links in RUN.values() for link in links for dest in destinations(link.option))
_LISTS = ("tuple_type", "moe_freq_type", "no_rope_freq_type", "la_freq_type")  # texts of lists


@dataclass(frozen=True, slots=True, kw_only=True)
class Renamed:
    """A program's names for Megatron-LM's options, by destination.

    names: the program's names (often one), with its section before a dot. omitted: options that it does not need.
    refused: the reasons against options that it cannot express; any other is refused as missing. refusal: how a refusal
    begins. first: options of which only the first value is taken.
    """

    names: Mapping[str, tuple[str, ...]]
    omitted: Collection[str]
    refused: Mapping[str, Refusal]
    refusal: str
    first: Collection[str] = ()

    def write(self, options: Iterable[Sequence[str]], table: FlagTable) -> tuple[dict[str, Any], list[Problem]]:
        """Return (values by the program's names, problems) for Megatron-LM's options: sequences of a name and values.

        Options in `omitted` are skipped; others without a name give a problem. Raises KeyError for an unknown one.
        """
        fields: dict[str, Any] = {}
        problems: list[Problem] = []
        for option in options:
            name, joined, word = option[0].partition("=")
            dest = table.flags[name].dest
            if dest in self.names:
                value: Any = parsed(table.flags[name], [word] if joined else option[1:], name)
                if table.flags[name].type in _LISTS:
                    value = layer_pattern(f"({value})")
                value = list(value) if isinstance(value, tuple) else value
                fields |= dict.fromkeys(self.names[dest], value[0] if dest in self.first else value)
            elif dest not in self.omitted:
                field, why = self.refused.get(dest, (name, "it has no such argument"))
                problems.append(Problem(f"{self.refusal}: {why}", field=field, got=" ".join(option)))
        return fields, problems

    def keys(self) -> dict[str, str]:
        """Return Megatron-LM's destinations by the program's names, without sections; equal names are left out."""
        last = ((dest, path.rpartition(".")[2]) for dest, paths in self.names.items() for path in paths)
        return {name: dest for dest, name in last if name != dest}


# Names of Megatron-Bridge's mixed-precision recipes (training/mixed_precision.py), by a plan's precision.
RECIPES = {
    "bf16": "bf16_mixed", "fp16": "fp16_mixed", "fp8": "bf16_with_fp8_current_scaling_mixed",
    "mxfp8": "bf16_with_mxfp8_mixed", "nvfp4": "bf16_with_nvfp4_mixed",
}  # fmt: skip

# Said by other fields of it: by num_query_groups, share_embeddings_and_output_weights, gated_linear_unit,
# bias_activation_fusion, grad_reduce_in_fp32, the recipe of mixed precision; or in train.py: the activation, the data
# set, the enumeration of kernels of attention. Tables of positions are as long as the sequence, and model.vocab_size is
# the padded one.
_NOT_BRIDGED = words(
    """
    group_query_attention untie_embeddings_and_output_weights swiglu squared_relu quick_geglu bias_gelu_fusion
    accumulate_allreduce_grads_in_fp32 grad_reduce_in_bf16 bf16 fp16 mock_data data_path split attention_backend
    create_attention_mask_in_dataloader max_position_embeddings padded_vocab_size
    """
)
# Section -> options whose field there has the option's own name; in `model`, those of links besides.
_KEYS_BY_SECTION = {
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
SECTIONS = tuple(_KEYS_BY_SECTION)
_DTYPES = ("main_params_dtype", "exp_avg_dtype", "exp_avg_sq_dtype")
_OWN = {section: words(names) for section, names in _KEYS_BY_SECTION.items()}
_OWN["model"] |= (LINKED | RUN_LINKED).difference(_NOT_BRIDGED, _DTYPES, *_OWN.values())
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
    omitted=_NOT_BRIDGED,
    refused=dict.fromkeys(_DTYPES, ("optimizer", "its field is a torch.dtype, which no override can say")),
    refusal="Megatron-Bridge",
    first=("cp_comm_type", "moe_router_load_balancing_type", "moe_aux_loss_coeff"),
)  # fmt: skip


EXTRA = "megatron_extra_kwargs"  # of ms-swift: passes on fields of TransformerConfig without an argument of their own
# The architecture is config.json's and what is trained on is `dataset`, with the model's tokenizer. Layers are
# Transformer Engine's, fusions are mcore-bridge's own choice, packed sequences have no mask, throughput is always
# logged, checkpoints are torch_dist, or fsdp_dtensor with Megatron-FSDP. ddp_timeout is in seconds. What it goes on
# from is one checkpoint, of adapters or of all weights. The last rows come with an option that is refused.
_NOT_SWIFT = words(
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
    names={dest: (dest,) for dest in RUN_LINKED.difference(_NOT_SWIFT, _REFUSED, _WITHOUT) | _OTHERS} | {
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
    omitted=_NOT_SWIFT | LINKED - _UNREAD,
    refused=_REFUSED,
    refusal="ms-swift 4.6.0 has no option for it",
)  # fmt: skip

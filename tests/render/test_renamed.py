"""What Megatron-LM would get arrives in programs that build on it, by names and values that are written here anew."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import pytest
import yaml

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import SymconfigError
from symconfig.formats.bridge import BRIDGE
from symconfig.formats.ms_swift import MS_SWIFT
from symconfig.formats.renamed import Renamed
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.plans.plan import Plan
from symconfig.render import megatron, render
from tests.render.test_megatron_run import PLANS
from tests.sample_plans import sample_plan

VERSION = {"bridge": "core_v0.16.1", "ms-swift": "core_v0.19.0"}
# Option -> what the program calls it.
CALLED = {
    "bridge": {
        "apply_layernorm_1p": "layernorm_zero_centered_gamma",
        "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
        "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
        "disable_bias_linear": "add_bias_linear", "fp4_format": "fp4", "fp8_format": "fp8",
        "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
        "no_bias_dropout_fusion": "bias_dropout_fusion",
        "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
        "no_overlap_p2p_communication": "overlap_p2p_comm", "no_persist_layer_norm": "persist_layer_norm",
        "no_rope_fusion": "apply_rope_fusion", "norm_epsilon": "layernorm_epsilon", "num_experts": "num_moe_experts",
        "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
        "use_rope_scaling": "rope_scaling",
    },
    "ms-swift": {
        "data_path": "dataset", "eval_interval": "eval_steps", "log_interval": "logging_steps",
        "manual_gc_interval": "manual_gc_steps",
        "microbatch_group_size_per_virtual_pipeline_stage": "microbatch_group_size_per_vp_stage",
        "no_gradient_accumulation_fusion": "gradient_accumulation_fusion",
        "no_overlap_p2p_communication": "overlap_p2p_comm",
        "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size", "save": "output_dir",
        "save_interval": "save_steps", "seq_length": "max_length",
    },
}  # fmt: skip
LISTS = {
    "bridge": words(
        """
        cuda_graph_scope linear_attention_freq moe_layer_freq no_rope_freq offload_modules recompute_modules
        window_attn_skip_freq window_size
        """
    ),
    "ms-swift": words(
        """
        cp_comm_type data_path moe_aux_loss_coeff moe_router_load_balancing_type recompute_modules
        """
    ),
}
# What it takes from the architecture, the data set, or another field; the last three of Bridge are in test_bridge.py.
ELSEWHERE = {
    "bridge": words(
        """
        accumulate_allreduce_grads_in_fp32 bf16 data_path fp16 grad_reduce_in_bf16 group_query_attention
        max_position_embeddings mock_data no_bias_gelu_fusion no_create_attention_mask_in_dataloader padded_vocab_size
        quick_geglu split squared_relu swiglu untie_embeddings_and_output_weights vocab_size position_embedding_type
        rotary_base
        """
    ),
    "ms-swift": words(
        """
        apply_layernorm_1p attention_dropout ckpt_format disable_bias_linear add_qkv_bias ffn_hidden_size
        glu_linear_offset activation_func_clamp_value group_query_attention hidden_dropout hidden_size init_method_std
        init_model_with_meta_device kv_channels kv_lora_rank load log_throughput make_vocab_size_divisible_by
        max_position_embeddings mock_data moe_ffn_hidden_size moe_layer_freq moe_router_enable_expert_bias
        moe_router_group_topk moe_router_num_groups moe_router_pre_softmax moe_router_score_function moe_router_topk
        moe_router_topk_scaling_factor moe_shared_expert_gate moe_shared_expert_intermediate_size mscale
        mscale_all_dim multi_latent_attention padded_vocab_size no_bias_dropout_fusion no_bias_gelu_fusion
        no_create_attention_mask_in_dataloader no_rope_fusion norm_epsilon normalization num_attention_heads
        num_experts num_layers num_query_groups position_embedding_type q_lora_rank qk_head_dim qk_layernorm
        qk_pos_emb_head_dim quick_geglu rope_type rotary_base rotary_percent rotary_scaling_factor
        rotary_seq_len_interpolation_factor softmax_type split swiglu tokenizer_model tokenizer_type transformer_impl
        untie_embeddings_and_output_weights use_rope_scaling v_head_dim vocab_size wandb_save_dir
        window_attn_skip_freq window_size yarn_beta_fast yarn_beta_slow yarn_original_max_position_embeddings
        no_yarn_correction_range_round_to_int
        """
    ),
}
# Fields of the section `model` that are Megatron-Bridge's own classes' (models/{gpt,mla}_provider.py and below).
PROVIDERS = words(
    """
    interleaved_attn_pattern make_vocab_size_divisible_by position_embedding_type rope_scaling rope_scaling_factor
    seq_len_interpolation_factor seq_length share_embeddings_and_output_weights vocab_size yarn_beta_fast
    yarn_beta_slow yarn_correction_range_round_to_int yarn_mscale yarn_mscale_all_dim
    yarn_original_max_position_embeddings yarn_rotary_scaling_factor rotary_base rotary_percent
    """
)


def plans(target: str) -> Iterator[Plan]:
    for model, cluster, fields, _ in PLANS.values():
        yield sample_plan(model, cluster, version=VERSION[target], **fields)
    saved = {"save": "/s", "save_interval": 7, "load": "/l", "data_path": ("/a.jsonl",), "wandb_project": "w"}
    yield sample_plan(
        "llama2-13b", "h100", version=VERSION[target], training={**saved, "eval_iters": 3, "eval_interval": 5}
    )
    for name in zoo_models():
        yield sample_plan(load_model(name), "h100", version=VERSION[target], tp=2, pp=1, dp=8)


def written(plan: Plan, target: str) -> dict[str, dict[str, Any]] | None:
    """Return the file's sections; None where the target refuses the plan."""
    try:
        files = render(plan, target)
    except SymconfigError:
        return None
    found = yaml.safe_load(files["overrides.yaml" if target == "bridge" else "config.yaml"])
    return found if target == "bridge" else {"": {**found, **found.get("megatron_extra_kwargs", {})}}


def values(texts: Sequence[str]) -> list[Any]:
    """Return the option's values: literals, the items of list expressions, or texts."""
    found: list[Any] = []
    for word in texts:
        try:
            literal = eval(word, {"__builtins__": {}})
        except (NameError, SyntaxError):
            literal = word
        found += literal if isinstance(literal, list | tuple) else [literal]
    return found


@pytest.mark.parametrize("target", VERSION)
def test_every_option_of_every_plan_arrives_with_its_value(target: str) -> None:
    told = 0
    for plan in plans(target):
        sections = written(plan, target)
        try:
            groups = megatron.groups(plan)
        except SymconfigError:
            continue
        for name, *texts in (option for group in groups for option in group.options) if sections else ():
            said = name.lstrip("-").replace("-", "_")
            if said in ELSEWHERE[target]:
                continue
            called, on = CALLED[target].get(said, said), not said.startswith(("no_", "disable_"))
            found = [section[called] for section in (sections or {}).values() if called in section]
            assert found, said
            for got in found:
                assert isinstance(got, list) == (said in LISTS[target]), said
                assert (got if isinstance(got, list) else [got]) == (values(texts) or [on]), said
        told += sections is not None
    assert told > 20


def test_bridges_fields_are_those_of_megatron_core() -> None:
    config = pytest.importorskip("megatron.core.transformer.transformer_config")
    optimizer = pytest.importorskip("megatron.core.optimizer")
    distributed = pytest.importorskip("megatron.core.distributed")
    known: dict[str, Set[str]] = {
        "model": PROVIDERS | set(config.MLATransformerConfig.__dataclass_fields__),
        "optimizer": set(optimizer.OptimizerConfig.__dataclass_fields__),
        "ddp": set(distributed.DistributedDataParallelConfig.__dataclass_fields__),
        "mixed_precision": words(
            """
            fp8 fp4 fp8_recipe fp4_recipe fp8_amax_history_len fp8_amax_compute_algo fp8_param_gather
            grad_reduce_in_fp32 first_last_layers_bf16 reuse_grad_buf_for_mxfp8_param_ag
            """
        ),
        "scheduler": words(
            """
            lr_decay_style lr_decay_iters lr_warmup_iters lr_wsd_decay_iters lr_wsd_decay_style start_weight_decay
            end_weight_decay
            """
        ),
    }
    known["model"] -= known["mixed_precision"] | known["scheduler"]
    for sections in (written(plan, "bridge") for plan in plans("bridge")):
        for section, fields in known.items():
            assert sections is None or sections.get(section, {}).keys() <= fields


@pytest.mark.parametrize("table", [BRIDGE, MS_SWIFT], ids=["bridge", "ms-swift"])
def test_a_table_is_of_options_that_there_are(table: Renamed) -> None:
    known = {flag.dest for version in versions() for flag in flags(version).flags.values()}
    assert {*table.names, *table.omitted, *table.refused} <= known
    assert not {*table.refused} & {*table.names, *table.omitted}

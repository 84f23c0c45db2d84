"""Families with blocks in attention's place against transformers: parameters, both spellings, and what is refused."""

from __future__ import annotations

import os
from typing import Any

import pytest

from symconfig.descriptor.architectures.hybrid import ARCHITECTURES
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from symconfig.solve.search import search
from tests.sample_models import sample_cluster
from tests.solve.naive import job

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

COMMON = {"vocab_size": 96, "hidden_size": 64, "num_hidden_layers": 5}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
SSD = {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 2, "mamba_d_state": 12, "mamba_chunk_size": 16}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 12}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24}
NEMOTRON = {
    "mamba_num_heads": 8, "mamba_head_dim": 8, "n_groups": 4, "ssm_state_size": 12, "head_dim": 16,
    "n_routed_experts": 4, "moe_intermediate_size": 24, "moe_shared_expert_intermediate_size": 20,
}  # fmt: skip
CONV, ATTENDS, WINDOW = "conv", "full_attention", "sliding_attention"
# What each family's file says beside the common sizes; more than one where a key changes the structure.
FILES: dict[str, list[dict[str, Any]]] = {
    "mamba2": [{"num_heads": 8, "head_dim": 16, "n_groups": 2}, {"num_heads": 8, "head_dim": 16, "use_bias": True}],
    "bamba": [
        HEADS | SSD | {"intermediate_size": 40, "attn_layer_indices": [1, 4]},
        HEADS | SSD | {"intermediate_size": 40, "mamba_d_head": "auto", "mlp_bias": True, "mamba_conv_bias": False},
    ],
    "granitemoehybrid": [
        HEADS | SSD | {"intermediate_size": 24, "shared_intermediate_size": 20, "num_local_experts": 4,
                       "layer_types": ["mamba", "attention", "mamba", "mamba", "attention"],
                       "position_embedding_type": "rope"},
        HEADS | SSD | {"shared_intermediate_size": 40, "num_local_experts": 0, "num_experts_per_tok": 0,
                       "embedding_multiplier": 12.0, "logits_scaling": 8.0, "residual_multiplier": 0.22},
    ],
    "falcon_h1": [
        HEADS | SSD | {"intermediate_size": 40, "mamba_d_ssm": 128},
        HEADS | SSD | {"intermediate_size": 40, "mamba_d_ssm": 128, "mamba_rms_norm": True, "projectors_bias": True},
    ],
    "nemotron_h": [
        HEADS | NEMOTRON | {"intermediate_size": 40, "hybrid_override_pattern": "M-M*E"},
        HEADS | NEMOTRON | {"intermediate_size": 40, "hybrid_override_pattern": "M-M*-", "use_bias": True},
        HEADS | NEMOTRON | {"intermediate_size": 40, "hybrid_override_pattern": "MEM*E", "norm_topk_prob": False},
        HEADS | NEMOTRON | {"intermediate_size": 40, "hybrid_override_pattern": "MEM*E", "moe_latent_size": 12},
    ],
    "qwen3_next": [
        HEADS | DELTA | EXPERTS | {"intermediate_size": 40, "head_dim": 16, "shared_expert_intermediate_size": 20},
        HEADS | DELTA | EXPERTS | {"intermediate_size": 40, "head_dim": 16, "mlp_only_layers": [1]},
    ],
    "qwen3_5_text": [HEADS | DELTA | {"intermediate_size": 40, "head_dim": 16}],
    "qwen3_5_moe_text": [HEADS | DELTA | EXPERTS | {"head_dim": 16, "shared_expert_intermediate_size": 20}],
    "lara_mini": [
        HEADS | DELTA | EXPERTS | {"head_dim": 16, "shared_expert_intermediate_size": 20, **more}
        for more in ({}, {"layer_types": ["linear_attention", "full_attention"] * 2 + [WINDOW]})
    ],
    "kimi_linear": [
        {"num_attention_heads": 4, "num_key_value_heads": 4, "linear_num_heads": 4, "linear_head_dim": 8,
         "intermediate_size": 40, "kv_lora_rank": 10, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 8,
         "num_local_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24},
    ],
    "lfm2": [
        HEADS | {"intermediate_size": 300, "layer_types": [CONV, CONV, ATTENDS, CONV, CONV]},
        HEADS | {"intermediate_size": 300, "full_attn_idxs": [2], "conv_bias": True, "block_multiple_of": 64},
        HEADS | {"intermediate_size": 300, "full_attn_idxs": [2], "block_auto_adjust_ff_dim": False},
    ],
    "lfm2_moe": [
        HEADS | EXPERTS | {"intermediate_size": 40, "layer_types": [CONV, CONV, ATTENDS, CONV, CONV]},
    ],
}  # fmt: skip
CASES = [(kind, place) for kind, files in FILES.items() for place in range(len(files))]


def file_of(kind: str, place: int) -> dict[str, Any]:
    return {"model_type": kind, **COMMON, **FILES[kind][place]}


def read(data: dict[str, Any]) -> ModelDescriptor:
    return import_config(data, "config.json", "m")


def class_of(data: dict[str, Any]) -> Any:
    """The config of transformers' class; it writes into the lists that it is given."""
    tokens = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"))
    return transformers.AutoConfig.for_model(
        **{k: list(v) if isinstance(v, list) else v for k, v in data.items()}, **tokens
    )


def test_every_family_has_a_file() -> None:
    assert set(FILES) == set(ARCHITECTURES)


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_a_model_has_as_many_parameters_as_the_real_one(kind: str, place: int) -> None:
    data = file_of(kind, place)
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(class_of(data))
    assert parameters(read(data)).total == sum(weight.numel() for weight in module.parameters())


@pytest.mark.parametrize(("kind", "place"), CASES)
def test_what_transformers_saves_is_imported_to_the_same_model(kind: str, place: int) -> None:
    data = file_of(kind, place)
    saved = {key: value for key, value in class_of(data).to_dict().items() if value is not None}
    ours, theirs = (read(each).model_dump(mode="json", exclude={"source", "notes"}) for each in (data, saved))
    assert theirs == ours


@pytest.mark.parametrize("kind", ["qwen3_next", "nemotron_h", "falcon_h1", "lfm2", "kimi_linear"])
def test_hybrids_are_planned(kind: str) -> None:
    model = read(file_of(kind, 0))
    plan = search(model, sample_cluster(), job(8, 16))
    assert plan.best.predicted.step_s > 0
    assert len(set(model.layer_kinds)) > 1 or kind == "falcon_h1"


def test_layers_are_what_the_pattern_says() -> None:
    kinds = read(file_of("nemotron_h", 0)).layer_kinds
    assert kinds == ("mixer_mamba2", "dense_alone", "mixer_mamba2", "mixer", "moe_alone")
    both = read(file_of("falcon_h1", 0)).kind_of_layer[0]
    assert (both.mixer, both.beside, both.attends) == ("gqa", "mamba2", True)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"layer_types": ["mamba"] * 4}, "layer_types"),
        ({"layer_types": ["convolution"] * 5}, "layer_types"),
        ({"mamba_gate": 1}, "this key is not known and may change the architecture"),
    ],
)
def test_a_file_that_is_wrong_is_refused(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        read(file_of("granitemoehybrid", 0) | change)

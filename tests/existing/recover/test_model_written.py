"""What people write: options that stand together, that are refused, and beside a model that is named.

What each option by itself says is compared with Megatron-LM's own parser in test_model_roundtrip.py.
"""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.existing.recover.model import described
from symconfig.existing.recover.run import Described
from tests.existing.recover.options import NEWEST, names_of

SHAPE = "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --vocab-size 50257 --tokenizer-type NullTokenizer"
LLAMA = f"{SHAPE} --swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
MOE = f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 512"
LATENT = (
    f"{LLAMA} --multi-latent-attention --qk-layernorm --q-lora-rank 512 --kv-lora-rank 128 --max-position-"
    "embeddings 4096"
)


def read(options: str, version: str = NEWEST, **more: Any) -> Described:
    return described(names_of(options, version), seq_length=2048, **more)


def model(options: str, version: str = NEWEST) -> ModelDescriptor:
    return read(options, version).model


def refused(options: str, version: str = NEWEST, **more: Any) -> list[str]:
    with pytest.raises(InputError) as error:
        read(options, version, **more)
    return [str(problem) for problem in error.value.problems]


def test_experts_without_a_size_of_their_own_have_the_dense_ones() -> None:
    found = model(f"{LLAMA} --ffn-hidden-size 768 --num-experts 4 --moe-layer-freq ([0]+[1]*23)")
    assert (found.experts.moe_intermediate_size, found.intermediate_size) == (768, 768)
    assert model(f"{LLAMA} --num-experts 0").experts is None


def test_layers_with_experts_in_no_simple_order_are_a_list() -> None:
    experts = model(f"{MOE} --moe-layer-freq ([1]*2+[0])*8").experts
    assert experts.layers == (True, True, False) * 8
    assert model(f"{MOE} --moe-layer-freq 2").moe_layers == (True, False) * 12


def test_experts_of_a_smaller_width_are_read() -> None:
    experts = model(f"{MOE} --moe-latent-size 256").experts
    assert (experts.latent_size, experts.latent_bias) == (256, False)


@pytest.mark.parametrize(
    ("options", "fields"),
    [
        ("--squared-relu", {"hidden_act": "relu2", "gated_mlp": False}),
        ("--num-experts 4 --disable-bias-linear", {"hidden_act": "gelu", "gated_mlp": False}),
        ("--quick-geglu", {"hidden_act": "gelu_sigmoid", "gated_mlp": True}),
        ("--attention-output-gate", {"attention_gate": "channel"}),
        ("--qk-l2-norm", {"qk_norm": True, "qk_norm_of": "unit"}),
        ("--position-embedding-type rope --no-rope-freq 4", {"rope_layers": (True, True, True, False) * 6}),
        ("--mup-embedding-mult 12", {"embedding_multiplier": None}),  # counts for nothing without --use-mup
        ("--use-mup --mup-embedding-mult 12", {"embedding_multiplier": 12.0, "scale_embeddings": False}),
        ("--use-mup --mup-embedding-mult 32", {"embedding_multiplier": None, "scale_embeddings": True}),
        ("--use-mup --mup-base-hidden-size 256", {"logits_multiplier": 0.25, "query_pre_attn_scalar": 4096.0}),
        ("--use-mup --mup-output-mult 2 --mup-base-head-dim 64", {"logits_multiplier": 2.0}),
        ("--use-mup --mup-base-head-dim 32 --mup-attn-scale-power 0.5", {"query_pre_attn_scalar": 2.0}),
    ],
)
def test_structure_is_read_from_its_options(options: str, fields: dict[str, Any]) -> None:
    found = model(f"{SHAPE} {options}")
    assert {name: getattr(found, name) for name in fields} == fields


def test_biases_of_experts_came_with_a_version() -> None:
    options = MOE.replace("--disable-bias-linear", "")
    for version, biased in (("core_v0.14.0", False), ("core_v0.15.0", True)):
        found = model(options, version)
        assert (found.experts.expert_bias, found.experts.router_bias, found.qkv_bias) == (biased, biased, True)


def test_latent_attention_has_defaults_and_yarn_by_its_factor() -> None:
    plain = model(LATENT)
    assert plain.latent.model_dump() == {
        "q_lora_rank": 512,
        "kv_lora_rank": 128,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
    }
    assert plain.rope_scaling is None
    scaled = model(f"{LATENT} --rotary-scaling-factor 40 --mscale 0.7").rope_scaling
    assert (scaled.factor, scaled.mscale, scaled.mscale_all_dim) == (40.0, 0.7, 0.0)
    assert model(f"{LATENT} --rotary-scaling-factor 40 --rope-type rope").rope_scaling is None
    old = model(f"{LATENT} --rotary-scaling-factor 40 --mscale 0.7", "core_v0.13.0").rope_scaling
    assert (old.mscale, old.mscale_all_dim, old.original_max_position_embeddings) == (0.7, 0.7, 4096)


def test_scaling_that_no_version_passes_on_is_none() -> None:
    options = f"{LLAMA} --rotary-seq-len-interpolation-factor 4"
    new = read(options)
    assert (new.model.rope_scaling.rope_type, new.model.rope_scaling.factor) == ("linear", 4.0)
    old = read(options, "core_v0.18.2")
    assert old.model.rope_scaling is None
    llama = read(f"{LLAMA} --use-rope-scaling --rope-scaling-factor 32")
    assert llama.model.rope_scaling.factor == 8.0


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--quick-geglu --glu-linear-offset 1", "--quick-geglu: cannot be predicted"),
        ("--no-rope-freq 5", "--no-rope-freq: cannot be predicted: layers without rope are not said"),
        ("--no-rope-freq [0]*3", "one value for each of 24 layers, not 3"),
        ("--swiglu --glu-linear-offset 1", "--glu-linear-offset: cannot be predicted"),
        ("--hybrid-attention-ratio 0.5", "--hybrid-attention-ratio: cannot be predicted: layers of several kinds"),
        ("--is-hybrid-model", "--is-hybrid-model: cannot be predicted"),
        ("--heterogeneous-layers-config-path layers.json", "--heterogeneous-layers-config-path: cannot be predicted"),
        ("--encoder-num-layers 12", "--encoder-num-layers: cannot be predicted: models of an encoder"),
        ("--decoder-seq-length 128", "--decoder-seq-length: cannot be predicted"),
        ("--retro-add-retriever", "--retro-add-retriever: cannot be predicted: retrieval"),
        ("--position-embedding-type mrope", "--position-embedding-type: cannot be predicted: rope of several axes"),
        ("--position-embedding-type relative", "--position-embedding-type: cannot be predicted: relative"),
        ("--softmax-type off-by-one", "--softmax-type: cannot be predicted"),
        ("--window-size 127,128", "--window-size: cannot be predicted"),
        ("--window-size 127,0 --window-attn-skip-freq [1]*3", "--window-attn-skip-freq: cannot be predicted"),
        (
            "--apply-residual-connection-post-layernorm",
            "--apply-residual-connection-post-layernorm: cannot be predicted",
        ),
        ("--experimental-attention-variant gated_delta_net", "--experimental-attention-variant: cannot be predicted"),
        ("--spec some.module layers", "--spec: cannot be predicted"),
        ("--swiglu --num-experts 4 --moe-layer-freq [1]*3", "one value for each of 24 layers, not 3"),
        ("--swiglu --num-experts 4 --moe-layer-freq [1]*[2]", "need a list expression such as"),
        ("--swiglu --num-experts 4 --moe-router-score-function sqrtsoftplus", "cannot be predicted: no such scores"),
        ("--group-query-attention --num-query-groups 5", "is not divisible by num_key_value_heads 5"),
        ("--swiglu --num-experts 4 --moe-router-topk 6", "num_experts_per_tok 6 is more than num_experts 4"),
    ],
)
def test_what_no_descriptor_describes_is_refused_by_its_name(options: str, says: str) -> None:
    found = refused(f"{SHAPE} {options}")
    assert any(says in text for text in found), found
    assert all(text.startswith("train.sh:1:") for text in found), found


def test_everything_that_is_wrong_is_said_at_once() -> None:
    found = refused("--num-layers 4 --window-size 127,128 --softmax-type off-by-one")
    assert len(found) == 4, found
    assert any("--hidden-size: the options do not say the model's hidden size" in text for text in found)
    assert any("--num-attention-heads: the options do not say" in text for text in found)


def test_yarn_without_options_is_refused_where_a_version_has_none() -> None:
    options = LLAMA.replace("-type rope", "-type yarn")
    assert "YaRN has no options" in refused(options, "core_v0.18.2")[0]
    scaling = model(f"{options} --rotary-scaling-factor 32").rope_scaling
    assert (scaling.rope_type, scaling.factor, scaling.original_max_position_embeddings) == ("yarn", 32.0, 4096)


def test_a_model_that_is_nearly_one_of_the_zoo_says_in_what() -> None:
    options = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 "
        "--group-query-attention --num-query-groups 8 --swiglu --normalization RMSNorm --disable-bias-linear "
        "--position-embedding-type rope --rotary-base 500000 --use-rope-scaling --attention-dropout 0 "
        "--hidden-dropout 0 --untie-embeddings-and-output-weights --tokenizer-type NullTokenizer"
    )
    assert read(f"{options} --vocab-size 128256").zoo == "llama3.1-8b"
    assert read(f"{options} --vocab-size 128256 --init-method-std 0.01").zoo == "llama3.1-8b"  # how it is trained
    found = read(f"{options} --vocab-size 32000 --norm-epsilon 1e-6")
    assert (found.zoo, found.nearest) == (None, ("llama3.1-8b", ("norm_eps 1e-06", "vocab_size 32000")))
    assert read(SHAPE).nearest is None


def test_the_named_model_fills_in_what_options_leave_open() -> None:
    llama = load_model("llama3.1-8b")
    found = read("--rotary-base 500000", named=llama)
    assert (found.model, found.zoo) == (llama, "llama3.1-8b")
    wrong = refused("--num-layers 40 --hidden-size 4096 --add-qkv-bias --init-method-std 0.01", named=llama)
    assert len(wrong) == 2
    assert "train.sh:1:1: --num-layers: is not llama3.1-8b's num_hidden_layers (got 40, need 32)" in wrong[0]
    assert "--add-qkv-bias: is not llama3.1-8b's qkv_bias" in wrong[1]


def test_layers_of_a_specification_are_those_of_the_named_model() -> None:
    found = read("--spec plugin.layers qwen_spec", named=load_model("qwen3-32b"))
    assert found.zoo == "qwen3-32b"
    assert [(item.what, item.value) for item in found.assumed] == [("layers", "those of qwen3-32b")]


def test_a_script_that_forgets_swiglu_is_not_the_model_that_it_is_said_to_be() -> None:
    options = (
        "--num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32 --vocab-size 128256"
        " --group-query-attention --num-query-groups 8"
    )
    found = refused(options, named=load_model("llama3.1-8b"))
    assert any("--swiglu: is not llama3.1-8b's hidden_act" in text for text in found), found
    assert any("--disable-bias-linear: is not llama3.1-8b's mlp_bias" in text for text in found), found
    with pytest.raises(InputError, match="Megatron-LM has none"):
        read("--bf16", named=load_model("llama2-70b-lora"))


@pytest.mark.parametrize(
    ("name", "options", "field"),
    [
        ("mixtral-8x7b", "--moe-router-topk 1", "experts.num_experts_per_tok"),
        ("deepseek-v3", "--kv-lora-rank 64", "latent.kv_lora_rank"),
        ("deepseek-v3", "--rotary-scaling-factor 4", "rope_scaling.factor"),
        ("llama3.1-8b", "--rotary-base 10000", "rope_theta"),
        ("gpt-oss-120b", "--yarn-beta-fast 3", "rope_scaling.beta_fast"),
        ("gpt-oss-120b", "--window-size 255,0", "sliding_window"),
        ("qwen3-32b", "--normalization LayerNorm", "norm"),
        ("llama2-7b", "--vocab-size 32001", "vocab_size"),
    ],
)
def test_an_override_of_the_named_model_is_found(name: str, options: str, field: str) -> None:
    found = refused(options, named=load_model(name))
    assert [text for text in found if f"{options.split()[0]}: is not {name}'s {field}" in text], found
    assert len(found) == 1, found


@pytest.mark.parametrize("name", ["mixtral-8x7b", "deepseek-v3", "gpt-oss-120b", "gpt3-175b", "qwen3-30b-a3b"])
def test_options_that_say_nothing_of_a_model_leave_the_named_one(name: str) -> None:
    found = read(
        "--bf16 --num-experts 128" if name in ("gpt-oss-120b", "qwen3-30b-a3b") else "--bf16", named=load_model(name)
    )
    assert (found.model, found.zoo, found.assumed) == (load_model(name), name, ())

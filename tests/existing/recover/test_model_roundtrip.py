"""A model, rendered as options of any version, is read back; Megatron-LM's own parser reads options the same."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.recover import zoo
from symconfig.existing.recover.model import described
from symconfig.frameworks.megatron.flags import resolve, versions
from symconfig.frameworks.megatron.hybrid import hybrid
from symconfig.verify import megatron_session
from symconfig.verify.megatron_sameness import compare
from symconfig.verify.megatron_session import Job
from tests.clock import quickest_s
from tests.existing.recover.options import NEWEST, names_of, rendered
from tests.verify.megatron_support import LIMIT_S, source
from tests.zoo_limits import NOT_IN_MEGATRON, SINCE

ZOO = [name for name in zoo_models() if load_model(name).adapter is None]


@pytest.mark.parametrize("name", sorted(NOT_IN_MEGATRON))
def test_what_no_option_says_is_rendered_for_no_version(name: str) -> None:
    assert all(rendered(load_model(name), version) is None for version in versions())


# Layers of a HybridModel are said with its stages, which a model alone has not: see tests/existing/audit.
@pytest.mark.parametrize("name", [name for name in ZOO if name not in NOT_IN_MEGATRON and not hybrid(load_model(name))])
def test_every_model_of_the_zoo_is_read_back_whole_by_every_version(name: str) -> None:
    model = load_model(name)
    order = versions()
    for version in order[order.index(SINCE[name][0] if name in SINCE else order[0]) :]:
        words = rendered(model, version)
        assert words is not None, version
        found = described(names_of(words, version), seq_length=2048)
        assert found.model == model, version
        assert found.zoo == name, version


def test_no_two_models_of_the_zoo_mean_the_same() -> None:
    meanings = [zoo.meaning(load_model(name)) for name in ZOO]
    assert all(one != other for index, one in enumerate(meanings) for other in meanings[:index])


def test_a_changed_field_changes_what_is_read() -> None:
    model = load_model("deepseek-v3")
    words = rendered(model)
    assert words is not None
    for option, value, field in (
        ("--num-layers", "60", "num_hidden_layers"),
        ("--moe-router-topk-scaling-factor", "2.4", "experts"),
        ("--rotary-base", "20000", "rope_theta"),
        ("--kv-lora-rank", "256", "latent"),
        ("--mscale", "0.7", "rope_scaling"),
    ):
        changed = [*words, option, value]
        if option == "--num-layers":
            changed += ["--moe-layer-freq", "([0]*3+[1]*57)"]
        found = described(names_of(changed), seq_length=2048)
        assert found.zoo is None
        assert getattr(found.model, field) != getattr(model, field)


def test_it_takes_little_time() -> None:
    words = rendered(load_model("deepseek-v3"))
    assert words is not None
    names = names_of(words)
    assert quickest_s(lambda: described(names, seq_length=2048)) < 0.03


@st.composite
def models(draw: st.DrawFn) -> ModelDescriptor:
    """Any model that Megatron-LM's options of the newest version express."""
    heads = draw(st.sampled_from((4, 8, 16)))
    layers = draw(st.integers(1, 12))
    biased = draw(st.booleans())
    fields: dict[str, Any] = {
        "schema": "symconfig.model/1",
        "name": "any",
        "source": "drawn",
        "model_type": "llama",
        "hidden_size": draw(st.sampled_from((64, 512, 4096))),
        "intermediate_size": draw(st.integers(1, 9000)),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": draw(st.sampled_from((1, 2, 4, heads))),
        "head_dim": draw(st.sampled_from((32, 64, 96))),
        "vocab_size": draw(st.integers(2, 300_000)),
        "max_position_embeddings": draw(st.sampled_from((2048, 4096))),
        "tie_word_embeddings": draw(st.booleans()),
        "norm": draw(st.sampled_from(("rmsnorm", "layernorm"))),
        "norm_eps": draw(st.floats(1e-9, 1e-3)),
        "norm_zero_centered": draw(st.booleans()),
        "mlp_bias": biased,
        "attention_out_bias": biased,
        "qkv_bias": biased or draw(st.booleans()),
        "attention_dropout": draw(st.floats(0, 1)),
        "hidden_dropout": draw(st.floats(0, 1)),
        "initializer_range": draw(st.floats(1e-4, 1)),
        "attention_sinks": draw(st.booleans()),
    }
    fields["qk_norm"] = fields["norm"] == "rmsnorm" and draw(st.booleans())
    fields |= draw(_positions())
    fields |= draw(_structure(layers, fields))
    if draw(st.booleans()):
        fields["sliding_window"] = draw(st.integers(1, 3000))
        fields["sliding_window_pattern"] = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    acts = [("silu", True), ("clamped_swiglu", True), ("gelu_sigmoid", True), ("relu2", False)]
    if draw(st.booleans()):
        fields["experts"] = draw(_experts(layers, biased))
    else:
        acts += [("gelu", False), ("gelu_tanh", False)] if biased else [("gelu", False)]
    fields["hidden_act"], fields["gated_mlp"] = draw(st.sampled_from(acts))
    turned = fields.get("rope_layers")
    if fields["position"] != "learned" and fields.get("rope_scaling", {}).get("rope_type") != "yarn" and not turned:
        fields["num_nextn_predict_layers"] = draw(st.integers(0, 2))
    return ModelDescriptor.model_validate(fields, strict=False)


@st.composite
def _structure(draw: st.DrawFn, layers: int, of: dict[str, Any]) -> dict[str, Any]:
    """Gates, norms without weights, layers without rope, factors. of: the fields that are drawn so far."""
    fields: dict[str, Any] = {"attention_gate": draw(st.sampled_from((None, "channel")))}
    if draw(st.booleans()):
        fields |= {"qk_norm": True, "qk_norm_of": "unit"}
    if of["position"] == "rope" and draw(st.booleans()):
        fields["rope_layers"] = draw(st.lists(st.booleans(), min_size=layers, max_size=layers))
    fields["logits_multiplier"] = draw(st.sampled_from((None, 0.0625, 2.0)))
    fields["query_pre_attn_scalar"] = draw(st.sampled_from((None, 168.0, 4096.0, float(of["head_dim"]))))
    if of["position"] != "learned":
        fields |= draw(st.sampled_from(({}, {"scale_embeddings": True}, {"embedding_multiplier": 12.0})))
    return fields


@st.composite
def _positions(draw: st.DrawFn) -> dict[str, Any]:
    kind = draw(st.sampled_from(("none", "learned", "rope", "linear", "llama3", "yarn")))
    if kind in ("none", "learned"):
        return {"position": kind}
    fields: dict[str, Any] = {
        "position": "rope",
        "rope_theta": float(draw(st.integers(1, 10**7))),
        "partial_rotary_factor": draw(st.sampled_from((0.25, 0.5, 1.0))),
    }
    scale: dict[str, Any] = {"rope_type": kind, "factor": float(draw(st.integers(2, 64)))}
    if kind == "llama3":
        scale |= {
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        }
    if kind == "yarn":
        scale["original_max_position_embeddings"] = draw(st.integers(1, 9000))
        for name in ("beta_fast", "beta_slow", "mscale"):
            scale[name] = draw(st.none() | st.floats(0.5, 40))
        scale["truncate"] = draw(st.sampled_from((None, True, False)))
    return fields if kind == "rope" else {**fields, "rope_scaling": scale}


@st.composite
def _experts(draw: st.DrawFn, layers: int, biased: bool) -> dict[str, Any]:
    top_k = draw(st.integers(1, 8))
    sigmoid = draw(st.booleans())
    fields: dict[str, Any] = {
        "num_experts": 8 * draw(st.integers(1, 32)),
        "num_experts_per_tok": top_k,
        "moe_intermediate_size": draw(st.integers(1, 4096)),
        "shared_expert_intermediate_size": draw(st.sampled_from((0, 512))),
        "shared_expert_gate": draw(st.booleans()),
        "first_k_dense_replace": draw(st.integers(0, layers - 1)),
        "scoring_func": "sigmoid" if sigmoid else "softmax",
        "norm_topk_prob": top_k > 1 and (sigmoid or draw(st.booleans())),
        "routed_scaling_factor": draw(st.sampled_from((1.0, 2.5))),
        "e_score_correction_bias": sigmoid and draw(st.booleans()),
        "router_bias": biased,
        "expert_bias": biased,
        "router_aux_loss_coef": draw(st.sampled_from((0.0, 0.001))),
    }
    latent = draw(st.sampled_from((None, 256)))
    fields |= {"latent_size": latent, "latent_bias": biased and latent is not None}
    if draw(st.booleans()):
        fields["layers"] = [*draw(st.lists(st.booleans(), min_size=layers - 1, max_size=layers - 1)), True]
    # Of the layers behind the dense ones, one at least has experts.
    fields["moe_layer_freq"] = draw(st.integers(1, layers - fields["first_k_dense_replace"]))
    if not sigmoid and not fields["norm_topk_prob"]:
        fields["softmax_after_topk"] = top_k > 1 and draw(st.booleans())
    if sigmoid and top_k == 8:
        fields |= {"n_group": 8, "topk_group": 4}
    return fields


@given(models())
@settings(max_examples=150, deadline=None)
def test_any_model_that_can_be_rendered_is_read_back(model: ModelDescriptor) -> None:
    words = rendered(model, NEWEST)
    assert words is not None
    found = described(names_of(words), seq_length=2048).model
    assert zoo.meaning(found) == zoo.meaning(model)


SHAPE = (
    "--num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 2048 --max-position-embeddings 4096 "
    "--micro-batch-size 1 --global-batch-size 8 --train-iters 10 --lr 1e-4 --bf16 --mock-data --vocab-size 50257 "
    "--tokenizer-type NullTokenizer --tensor-model-parallel-size 2 --transformer-impl transformer_engine"
)
LLAMA = "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear"
MOE = f"{LLAMA} --num-experts 8 --moe-ffn-hidden-size 512 --sequence-parallel"
LATENT = f"{LLAMA} --multi-latent-attention --qk-layernorm --q-lora-rank 512 --kv-lora-rank 128 --no-rope-fusion"
YARN = LLAMA.replace("-type rope", "-type yarn") + " --rotary-scaling-factor 32"
CASES = (  # options that do not depend on each other share a case
    "",
    LLAMA,
    "--swiglu",
    "--swiglu --ffn-hidden-size 2816 --kv-channels 128 --num-query-groups 4 --untie-embeddings-and-output-weights",
    "--no-bias-gelu-fusion --norm-epsilon 1e-6 --apply-layernorm-1p --position-embedding-type none",
    "--disable-bias-linear --add-qkv-bias --group-query-attention --num-query-groups 4",
    "--use-rotary-position-embeddings --num-experts 0 --hidden-dropout 0 --attention-dropout 0.3",
    "--position-embedding-type rope --rotary-percent 0.25 --rotary-base 500000 --init-method-std 0.006",
    f"{LLAMA} --qk-layernorm --use-rope-scaling --rope-scaling-factor 8",
    f"{LLAMA} --rotary-seq-len-interpolation-factor 4 --mtp-num-layers 1",
    MOE,
    f"{LLAMA} --num-experts 4 --sequence-parallel --moe-router-topk 4 --moe-router-pre-softmax",
    f"{MOE} --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-topk 4 "
    "--moe-router-topk-scaling-factor 2.5 --moe-router-num-groups 4 --moe-router-group-topk 2",
    f"{MOE} --moe-router-score-function sigmoid --moe-router-topk 1 --moe-layer-freq ([0]*3+[1]*21)",
    f"{MOE} --moe-layer-freq ([0,1]*12) --ffn-hidden-size 3000 --moe-shared-expert-intermediate-size 256 "
    "--moe-aux-loss-coeff 0.01",
    f"{MOE} --moe-router-load-balancing-type none --moe-aux-loss-coeff 0.01",
    LATENT,
    f"{LATENT} --rotary-scaling-factor 40 --mscale 0.7",
    f"{LATENT} --rotary-scaling-factor 40 --rope-type rope --num-experts 8 --sequence-parallel "
    "--moe-layer-freq [0]+[1]*23",
    "--window-size (127,0) --window-attn-skip-freq 4 --softmax-type learnable",
    "--window-size 127,0 --window-attn-skip-freq ([1]*23+[0])",
    f"{YARN} --yarn-beta-fast 20",
    f"{YARN} --no-yarn-correction-range-round-to-int --yarn-original-max-position-embeddings 2048",
    LLAMA.replace("--swiglu", "--quick-geglu --glu-linear-offset 1.0 --activation-func-clamp-value 7"),
)


@pytest.mark.usefixtures("warm_megatron")
def test_megatron_resolves_the_same_model() -> None:
    megatron = source()
    if resolve(megatron.version) != NEWEST:
        pytest.skip(f"the options are those of {NEWEST}, and here is {megatron.version}")
    lists = {case: f"{SHAPE} {case}".split() for case in CASES}
    jobs = [Job(case, tuple(words), 2, env={"CUDA_DEVICE_MAX_CONNECTIONS": "1"}) for case, words in lists.items()]
    results = megatron_session.run(megatron, jobs, LIMIT_S)
    for case, words in lists.items():
        assert results[case].ok, (case, results[case].error)
        found = described(names_of(words), seq_length=2048).model
        assert not list(compare(found, results[case], "options")), case

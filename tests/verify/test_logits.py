"""Sameness to the last digit: transformers' logits equal megatron-core's, built from our rendered arguments.

megatron-core 0.19.2's GPTModel with its local layers (no Transformer Engine), one CPU process, fp32. Only how
things are computed is overridden (IMPLEMENTATION); everything of the architecture is what symconfig rendered.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.render import megatron as render
from symconfig.verify import megatron_source
from tests.sample_plans import sample_plan

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

RUNNERS = Path(megatron_source.__file__).with_name("runners")
WORKER = Path(__file__).with_name("logits_worker.py")
SEQUENCE, VOCABULARY = 24, 200
# Kernels, number formats and the transport of tokens between GPUs: none changes what is computed.
DROPPED = {"--bf16", "--moe-grouped-gemm", "--moe-permute-fusion", "--moe-router-fusion"}
IMPLEMENTATION = [
    "--transformer-impl", "local", "--use-cpu-initialization", "--no-persist-layer-norm",
    "--no-gradient-accumulation-fusion", "--no-rope-fusion", "--no-bias-swiglu-fusion", "--no-masked-softmax-fusion",
    "--no-bias-dropout-fusion", "--moe-token-dispatcher-type", "allgather",
]  # fmt: skip
TINY: dict[str, Any] = {
    "schema": "symconfig.model/1", "name": "tiny", "source": "this test", "hidden_size": 64, "intermediate_size": 96,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
    "vocab_size": VOCABULARY, "max_position_embeddings": 128,
}  # fmt: skip
EXPERTS: dict[str, Any] = {
    "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32, "norm_topk_prob": True,
    "router_aux_loss_coef": 0.01,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "llama": {"model_type": "llama", "rope_theta": 5000.0},
    "llama 3.1: scaled rope": {
        "model_type": "llama",
        "rope_theta": 500000.0,
        "max_position_embeddings": 131072,
        "rope_scaling": {
            "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    },
    "qwen2: biases of q, k, v, tied, all heads have keys": {"model_type": "qwen2", "rope_theta": 1e6,
        "qkv_bias": True, "norm_eps": 1e-6, "tie_word_embeddings": True, "num_key_value_heads": 4},
    "qwen3: normed q and k, wide heads": {
        "model_type": "qwen3", "rope_theta": 1e6, "qk_norm": True, "norm_eps": 1e-6, "head_dim": 32,
    },
    "mixtral": {"model_type": "mixtral", "intermediate_size": 0, "rope_theta": 1e6, "experts": EXPERTS},
    "qwen3 moe: probabilities as they are": {"model_type": "qwen3_moe", "rope_theta": 1e6, "qk_norm": True,
        "norm_eps": 1e-6, "experts": {**EXPERTS, "norm_topk_prob": False}},
    "gpt-oss: sinks, windows, clamped experts with biases, YaRN": {
        "model_type": "gpt_oss",
        "intermediate_size": 0,
        "rope_theta": 150000.0,
        "hidden_act": "clamped_swiglu",
        "rope_scaling": {
            "rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "truncate": False,
        },
        "max_position_embeddings": 131072,
        "qkv_bias": True,
        "attention_out_bias": True,
        "attention_sinks": True,
        "sliding_window": 8,
        "sliding_window_pattern": [True, False],
        "experts": {**EXPERTS, "softmax_after_topk": True, "router_bias": True, "expert_bias": True},
    },
    "deepseek v3: latent attention, groups of experts, a bias of the choice, a shared expert, YaRN": {
        "model_type": "deepseek_v3",
        "norm_eps": 1e-6,
        "attention": "mla",
        "num_key_value_heads": 4,
        "rope_scaling": {
            "rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "beta_fast": 32.0,
            "beta_slow": 1.0, "mscale": 1.0, "mscale_all_dim": 1.0,
        },
        "max_position_embeddings": 163840,
        "latent": {
            "q_lora_rank": 32, "kv_lora_rank": 16, "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16,
        },
        "experts": {
            **EXPERTS, "num_experts": 8, "num_experts_per_tok": 4, "scoring_func": "sigmoid", "n_group": 4,
            "topk_group": 2, "routed_scaling_factor": 2.5, "e_score_correction_bias": True,
            "shared_expert_intermediate_size": 32, "first_k_dense_replace": 1,
        },
    },
    "gpt2: learned positions, biases, LayerNorm, GELU": {
        "model_type": "gpt2", "intermediate_size": 256, "num_key_value_heads": 4, "tie_word_embeddings": True,
        "hidden_act": "gelu_tanh", "gated_mlp": False, "mlp_bias": True, "norm": "layernorm", "position": "learned",
        "qkv_bias": True, "attention_out_bias": True, "attention_dropout": 0.1, "hidden_dropout": 0.1,
    },
}  # fmt: skip
# transformers' own names where the family's are not the descriptor's: those of its class's configuration.
SHAPE = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4, "head_dim": 16,
    "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "pad_token_id": None, "bos_token_id": None, "eos_token_id": None, "tie_word_embeddings": False,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "smollm3: a layer without rope": {"no_rope_layers": [1, 0], "use_sliding_window": False,
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}},
    "granite: factors": {"embedding_multiplier": 12.0, "logits_scaling": 0.5, "attention_multiplier": 512.0**-0.5,
                         "residual_multiplier": 1.0},
    "qwen3 next: a gate, partial rope": {"layer_types": ["full_attention"] * 2, "mlp_only_layers": [0, 1],
        "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": 0.25}},
}  # fmt: skip
MODELS |= {
    "smollm3: a layer without rope": {"model_type": "smollm3", "rope_layers": [True, False]},
    "granite: factors": {
        "model_type": "granite", "embedding_multiplier": 12.0, "logits_multiplier": 2.0,
        "query_pre_attn_scalar": 512.0,
    },
    "qwen3 next: a gate, partial rope": {
        "model_type": "qwen3_next", "partial_rotary_factor": 0.25, "qk_norm": True, "attention_gate": "channel",
    },
}  # fmt: skip
# The model on which it must show, a rendered argument, and what it is replaced by.
WRONG: dict[str, tuple[str, str, str]] = {
    "rope base": ("llama", "--rotary-base=5000", "--rotary-base=10000"),
    "no scaling": ("llama 3.1: scaled rope", "--use-rope-scaling", ""),
    "epsilon": ("llama", "--norm-epsilon=1e-05", "--norm-epsilon=0.1"),
    "renormalised": ("qwen3 moe: probabilities as they are", "--moe-router-pre-softmax", ""),
    "window": ("gpt-oss: sinks, windows, clamped experts with biases, YaRN", "--window-size=7,0", "--window-size=8,0"),
    "rounded YaRN range": ("gpt-oss: sinks, windows, clamped experts with biases, YaRN",
                           "--no-yarn-correction-range-round-to-int", ""),
    "softmax scale": (
                      "deepseek v3: latent attention, groups of experts, a bias of the choice, a shared expert, YaRN",
                      "--mscale-all-dim=1.0", "--mscale-all-dim=0.0"),
    "rope everywhere": ("smollm3: a layer without rope", "--no-rope-freq=([0]*1+[1]*1)", ""),
    "another scale of scores": ("granite: factors", "--mup-base-head-dim=0.03125", "--mup-base-head-dim=1.0"),
    "another factor of logits": ("granite: factors", "--mup-output-mult=2.0", "--mup-output-mult=1.0"),
    "other rotary channels": ("qwen3 next: a gate, partial rope", "--rotary-percent=0.25", "--rotary-percent=0.5"),
    "one expert": ("mixtral", "--moe-router-topk=2", "--moe-router-topk=3"),
}  # fmt: skip


def _joined(args: list[str]) -> list[str]:
    """Options with one value as --name=value, to be replaced as one word."""
    joined: list[str] = []
    for word in args:
        if word.startswith("--") or "=" in joined[-1]:
            joined.append(word)
        else:
            joined[-1] += f"={word}"
    return joined


def _config(name: str, descriptor: ModelDescriptor) -> Any:
    from tests.descriptor.small_configs import to_transformers_config

    if name not in CONFIGS:
        return to_transformers_config(descriptor)
    return transformers.AutoConfig.for_model(descriptor.model_type, **SHAPE | CONFIGS[name])


def _case(name: str, fields: dict[str, Any]) -> tuple[dict[str, Any], Any]:
    """The worker's request for one model, and transformers' logits[B, T, V]."""
    descriptor = ModelDescriptor.model_validate_json(json.dumps({**TINY, **fields}))
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(_config(name, descriptor)).float().eval()
    with torch.no_grad():
        for weight in model.parameters():  # norms around 1, and biases that matter
            weight.copy_(torch.randn_like(weight) * 0.1 if weight.dim() > 1 else 1 + 0.3 * torch.randn_like(weight))
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.copy_(torch.randn_like(buffer) * 0.1)
        tokens = torch.randint(0, VOCABULARY, (2, SEQUENCE))
        expected = model(tokens).logits
    plan = sample_plan(descriptor, tp=1, pp=1, dp=1, seq_length=SEQUENCE, global_batch=8)
    args = [
        word
        for word in _joined(render.arguments(plan))
        if word not in DROPPED and not word.startswith(("--transformer-impl", "--moe-token-dispatcher-type"))
    ]
    weights = model.state_dict()
    if descriptor.model_type == "qwen3_next":  # the local layers have no weights around 0
        weights = {name: weight + 1 if name.endswith("norm.weight") else weight for name, weight in weights.items()}
    return {"args": args, "tokens": tokens, "weights": weights, "config": model.config}, expected


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """Logits of transformers and of megatron-core, by case: all of them in one process."""
    source = megatron_source.find()
    if source is None:
        pytest.skip(f"Megatron's argument parser is not here: {megatron_source.COMMAND}")
    cases, expected = {}, {}
    for name, fields in MODELS.items():
        cases[name], expected[name] = _case(name, fields)
    for name, (model, right, wrong) in WRONG.items():
        assert right in cases[model]["args"], f"{right} is no longer rendered"
        args = [wrong if word == right else word for word in cases[model]["args"]]
        cases[name] = {**cases[model], "args": [word for word in args if word]}
    for case in cases.values():
        case["args"] = [*case["args"], *IMPLEMENTATION]
    folder = tmp_path_factory.mktemp("logits")
    torch.save({"source": str(source.root), "runners": RUNNERS, "cases": cases}, folder / "request.pt")
    ended = subprocess.run(
        [sys.executable, str(WORKER), str(folder / "request.pt"), str(folder / "answer.pt")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answer = torch.load(folder / "answer.pt")
    return expected, {name: logits[..., :VOCABULARY] for name, logits in answer.items()}


@pytest.mark.parametrize("name", MODELS)
def test_megatron_built_from_our_arguments_gives_the_same_logits(name: str, both: tuple[Any, Any]) -> None:
    expected, got = both
    assert expected[name].abs().max() > 1  # not a comparison of zeros
    torch.testing.assert_close(got[name], expected[name], atol=2e-5, rtol=0)


@pytest.mark.parametrize("name", WRONG)
def test_one_wrong_argument_gives_other_logits(name: str, both: tuple[Any, Any]) -> None:
    expected, got = both
    assert (got[name] - expected[WRONG[name][0]]).abs().max() > 1e-3

"""The decoder whose steps are timed gives what Transformers gives: with prompts, word by word, and with experts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.count import parameters
from symconfig.measured.gpu.decoder import Decoder, decoder, shapes, unsupported
from symconfig.measured.gpu.kernel_run import Bench

torch: Any = pytest.importorskip("torch")
transformers: Any = pytest.importorskip("transformers")
SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rope_scaling": None,
}
EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
CLASSES = {"qwen3-8b": "Qwen3", "llama3.2-1b": "Llama", "qwen2.5-7b": "Qwen2", "qwen3-30b-a3b": "Qwen3Moe"}


class Wide(Bench):
    """A bench whose numbers have 32 bits, so that a comparison is of formulas and not of rounding."""

    @property
    def half(self) -> Any:
        return torch.float32


def small(name: str) -> ModelDescriptor:
    model = load_model(name)
    fields = dict(SMALL)
    if model.experts is not None:
        fields["experts"] = model.experts.model_copy(update=EXPERTS)
    return model.model_copy(update=fields)


def theirs(name: str, model: ModelDescriptor) -> Any:
    """A model of Transformers with the sizes of `model`."""
    torch.manual_seed(1)
    sizes = {key: value for key, value in SMALL.items() if key != "rope_scaling"} | (EXPERTS if model.experts else {})
    config = getattr(transformers, f"{CLASSES[name]}Config")(
        **sizes,
        rope_theta=model.rope_theta,
        rms_norm_eps=model.norm_eps,
        tie_word_embeddings=model.tie_word_embeddings,
        **({"norm_topk_prob": True} if model.experts else {}),
    )
    made = getattr(transformers, f"{CLASSES[name]}ForCausalLM")(config).float().eval()
    for weight in made.parameters():  # norms and biases that are not ones and zeros
        weight.data.add_(0.1 * torch.randn_like(weight))
    return made


def loaded(name: str, made: Any, model: ModelDescriptor) -> Decoder:
    """The decoder with the weights of Transformers' model."""
    mine = decoder(Wide(torch, "cpu", 0), model, model.num_hidden_layers, 64, lambda function: function)
    weights: dict[tuple[int | None, str], Any] = {
        (None, "embedding"): made.model.embed_tokens.weight,
        (None, "norm"): made.model.norm.weight,
    }
    if not model.tie_word_embeddings:
        weights[None, "head"] = made.lm_head.weight
    for index, layer in enumerate(made.model.layers):
        attention, mlp = layer.self_attn, layer.mlp
        joined = (attention.q_proj, attention.k_proj, attention.v_proj)
        weights |= {
            (index, "input_norm"): layer.input_layernorm.weight,
            (index, "qkv"): torch.cat([part.weight for part in joined]),
            (index, "out"): attention.o_proj.weight,
            (index, "mlp_norm"): layer.post_attention_layernorm.weight,
        }
        if model.qkv_bias:
            weights[index, "qkv_bias"] = torch.cat([part.bias for part in joined])
        if model.qk_norm:
            weights |= {(index, "query_norm"): attention.q_norm.weight, (index, "key_norm"): attention.k_norm.weight}
        if model.experts is not None:
            weights |= {
                (index, "router"): mlp.gate.weight,
                (index, "gate_up"): mlp.experts.gate_up_proj,
                (index, "down"): mlp.experts.down_proj,
            }
        else:
            weights |= {
                (index, "gate_up"): torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight]),
                (index, "down"): mlp.down_proj.weight,
            }
    assert {key: tuple(value.shape) for key, value in weights.items()} == {
        (shape.layer, shape.name): shape.size for shape in shapes(model, model.num_hidden_layers)
    }
    return replace(mine, weights=weights)


@pytest.mark.parametrize("name", CLASSES)
def test_it_gives_the_logits_of_transformers(name: str) -> None:
    model = small(name)
    assert unsupported(model) is None
    made = theirs(name, model)
    mine = loaded(name, made, model)
    words = torch.randint(0, 96, (3, 9))
    with torch.no_grad():
        expected = made(words).logits
        behind = mine.prefilled(words[:, :7].flatten(), 7)
        torch.testing.assert_close(behind, expected[:, 6], rtol=1e-4, atol=1e-4)
        # The memory of one length is not that of another, so what a step reads is written anew for each.
        for length in (8, 9):
            mine.prefilled(words[:, :length].flatten(), length)
            for keys in (*mine.keys, *mine.values):
                keys[: 3 * length].unflatten(0, (3, length))[:, -1].normal_()
            after = mine.decoded(words[:, length - 1], length)
            torch.testing.assert_close(after, expected[:, length - 1], rtol=1e-4, atol=1e-4)


def test_weights_are_counted_as_the_planner_counts_them() -> None:
    for name in CLASSES:
        model = load_model(name)
        numbers = sum(torch.Size(shape.size).numel() for shape in shapes(model, model.num_hidden_layers))
        assert numbers == parameters(model, with_mtp=False).total


def test_other_models_are_refused() -> None:
    assert "do not attend to all" in str(unsupported(load_model("gemma3-27b")))
    assert "other weights" in str(unsupported(load_model("deepseek-v3")))


def test_words_are_sampled_by_their_shares() -> None:
    torch.manual_seed(1)
    mine = decoder(Wide(torch, "cpu", 0), small("llama3.2-1b"), 1, 4, lambda function: function)
    logits = torch.tensor([0.0, 0.7, -0.7, 1.4])
    drawn = mine.sampled(logits.expand(40_000, 4).clone())
    shares = torch.bincount(drawn, minlength=4) / 40_000
    torch.testing.assert_close(shares, (logits / 0.7).softmax(-1), rtol=0, atol=0.01)

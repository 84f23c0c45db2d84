"""Weights of a transformers model under megatron-core's names and layouts (tp 1, pp 1, ungrouped local layers).

Shapes by letter: D hidden, H heads, G key-value groups, d head dim, F MLP width, E experts, V vocabulary.
Imported by logits_worker.py, without symconfig's package.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


MLA = {
    "q_a_proj": "linear_q_down_proj", "q_a_layernorm": "q_layernorm", "q_b_proj": "linear_q_up_proj",
    "q_proj": "linear_q_proj", "kv_a_proj_with_mqa": "linear_kv_down_proj", "kv_a_layernorm": "kv_layernorm",
    "kv_b_proj": "linear_kv_up_proj",
}  # fmt: skip


GPT2 = {
    "ln_1": "input_layernorm", "ln_2": "pre_mlp_layernorm", "attn.c_attn": "self_attention.linear_qkv",
    "attn.c_proj": "self_attention.linear_proj", "mlp.c_fc": "mlp.linear_fc1", "mlp.c_proj": "mlp.linear_fc2",
}  # fmt: skip


def convert(config: Any, state: Mapping[str, torch.Tensor], padded_vocab_size: int) -> dict[str, torch.Tensor]:
    """Convert a state dict of Transformers to GPTModel's. `config`: transformers' config of a llama-like model (qwen2,
    qwen3, mixtral, qwen3_moe, gpt_oss, deepseek_v3 without prediction layers, qwen3_next with attention alone), or
    of gpt2.

    Raises KeyError for a weight that is missing; a weight that is not used is an error, too (ValueError).
    """
    left = dict(state)
    if config.model_type == "gpt2":
        return dict(_gpt2(config, left, padded_vocab_size))
    state_dict = dict(_outer(left, padded_vocab_size, bool(config.tie_word_embeddings)))
    for layer in range(config.num_hidden_layers):
        theirs, ours = f"model.layers.{layer}.", f"decoder.layers.{layer}."
        state_dict.update(_attention(config, left, theirs + "self_attn.", ours + "self_attention."))
        state_dict[ours + "input_layernorm.weight"] = left.pop(theirs + "input_layernorm.weight")
        state_dict[ours + "pre_mlp_layernorm.weight"] = left.pop(theirs + "post_attention_layernorm.weight")
        state_dict.update(_mlp(left, theirs + "mlp.", ours + "mlp."))
    if left:
        raise ValueError(f"weights without a place in megatron-core: {sorted(left)}")
    return state_dict


def _outer(left: dict[str, torch.Tensor], rows: int, tied: bool) -> Iterator[tuple[str, torch.Tensor]]:
    embedding = left.pop("model.embed_tokens.weight")
    yield "embedding.word_embeddings.weight", _pad(embedding, rows)
    yield "decoder.final_layernorm.weight", left.pop("model.norm.weight")
    head = left.pop("lm_head.weight", embedding)
    if not tied:
        yield "output_layer.weight", _pad(head, rows)


def _pad(weight: torch.Tensor, rows: int) -> torch.Tensor:
    """Pad weight[V, D] -> [rows, D], with zeros below."""
    return _concatenate([weight, weight.new_zeros(rows - weight.shape[0], weight.shape[1])])


def _concatenate(parts: list[torch.Tensor], dim: int = 0) -> torch.Tensor:
    import torch

    return torch.cat(parts, dim)


def _attention(
    config: Any, left: dict[str, torch.Tensor], theirs: str, ours: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield q, k and v in one matrix, as Megatron keeps them, group by group: H/G queries, one key, one value."""
    if f"{theirs}kv_b_proj.weight" in left:
        for name, other in MLA.items():
            if f"{theirs}{name}.weight" in left:
                yield f"{ours}{other}.weight", left.pop(f"{theirs}{name}.weight")
    groups = config.num_key_value_heads
    for kind in ("weight", "bias"):
        names = [f"{theirs}{part}_proj.{kind}" for part in "qkv"]
        if names[0] in left:
            # [G * n * d, ...] -> [G, n * d, ...]
            parts = [left.pop(name).unflatten(0, (groups, -1)) for name in names]
            gated = parts[0].shape[1] * groups > config.num_attention_heads * config.head_dim
            parts = [*_gate_apart(parts[0], config.head_dim), *parts[1:]] if gated else parts
            yield f"{ours}linear_qkv.{kind}", _concatenate(parts, 1).flatten(0, 1)
        if f"{theirs}o_proj.{kind}" in left:
            yield f"{ours}linear_proj.{kind}", left.pop(f"{theirs}o_proj.{kind}")
    if f"{theirs}sinks" in left:
        yield f"{ours}core_attention.softmax_offset", left.pop(f"{theirs}sinks")
    for part in "qk":
        if f"{theirs}{part}_norm.weight" in left:
            yield f"{ours}{part}_layernorm.weight", left.pop(f"{theirs}{part}_norm.weight")


def _gate_apart(queries: torch.Tensor, width: int) -> list[torch.Tensor]:
    """Reorder queries[G, n * 2d, ...], each head's query before its gate -> all queries of a group, all gates."""
    heads = queries.unflatten(1, (-1, 2, width))
    return [heads[:, :, part].flatten(1, 2) for part in (0, 1)]


def _mlp(left: dict[str, torch.Tensor], theirs: str, ours: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield gate and up as one matrix [2F, D], as in megatron-core, gate first; experts one by one."""
    if f"{theirs}experts.gate_up_proj_bias" in left:
        yield from _gpt_oss_experts(left, theirs, ours)
        return
    if f"{theirs}experts.gate_up_proj" not in left:
        gate, up = (left.pop(f"{theirs}{part}_proj.weight") for part in ("gate", "up"))
        yield f"{ours}linear_fc1.weight", _concatenate([gate, up])
        yield f"{ours}linear_fc2.weight", left.pop(f"{theirs}down_proj.weight")
        return
    yield f"{ours}router.weight", left.pop(f"{theirs}gate.weight")
    if f"{theirs}gate.e_score_correction_bias" in left:
        yield f"{ours}router.expert_bias", left.pop(f"{theirs}gate.e_score_correction_bias")
    if f"{theirs}shared_experts.gate_proj.weight" in left:
        yield from _mlp(left, f"{theirs}shared_experts.", f"{ours}shared_experts.")
    both, down = left.pop(f"{theirs}experts.gate_up_proj"), left.pop(f"{theirs}experts.down_proj")
    for expert in range(both.shape[0]):  # both[E, 2F, D], down[E, D, F]
        yield f"{ours}experts.local_experts.{expert}.linear_fc1.weight", both[expert]
        yield f"{ours}experts.local_experts.{expert}.linear_fc2.weight", down[expert]


def _gpt_oss_experts(left: dict[str, torch.Tensor], theirs: str, ours: str) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield gpt-oss's experts.

    They keep inputs before outputs, and gate and up in turns: gate_up[E, D, 2F], down[E, F, D].
    """
    for kind in ("weight", "bias"):
        yield f"{ours}router.{kind}", left.pop(f"{theirs}router.{kind}")
        suffix = "" if kind == "weight" else "_bias"
        both, down = (left.pop(f"{theirs}experts.{part}_proj{suffix}") for part in ("gate_up", "down"))
        for expert in range(both.shape[0]):
            turns = both[expert]
            apart = _concatenate([turns[..., ::2], turns[..., 1::2]], -1)  # gate, then up
            place = f"{ours}experts.local_experts.{expert}."
            yield f"{place}linear_fc1.{kind}", apart.T if kind == "weight" else apart
            yield f"{place}linear_fc2.{kind}", down[expert].T if kind == "weight" else down[expert]


def _gpt2(config: Any, left: dict[str, torch.Tensor], rows: int) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield GPT-2's weights.

    They keep inputs before outputs: W[in, out]; c_attn is all queries, all keys, all values.
    """
    embedding = left["transformer.wte.weight"]
    yield "embedding.word_embeddings.weight", _pad(embedding, rows)
    yield "embedding.position_embeddings.weight", left["transformer.wpe.weight"]
    if not config.tie_word_embeddings:
        yield "output_layer.weight", _pad(left["lm_head.weight"], rows)
    for kind in ("weight", "bias"):
        yield f"decoder.final_layernorm.{kind}", left[f"transformer.ln_f.{kind}"]
        for layer in range(config.n_layer):
            theirs, ours = f"transformer.h.{layer}.", f"decoder.layers.{layer}."
            for name, other in GPT2.items():
                weight = left[f"{theirs}{name}.{kind}"]
                turned = weight.T if weight.dim() == 2 else weight
                if name == "attn.c_attn":  # [3 * H * d, ...] -> [H, 3, d, ...]: one group a head
                    turned = turned.unflatten(0, (3, config.n_head, -1)).transpose(0, 1).flatten(0, 2)
                yield f"{ours}{other}.{kind}", turned

"""Families of recurrences in all layers: RWKV-4, xLSTM, Zamba, whose layers share attention and an MLP; and those whose
layers run several times for each token: NVIDIA's Dory, Sapient's HRM.
"""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures import blocks
from symconfig.descriptor.architectures.architecture import (
    FULL,
    LINEAR,
    OLDER_TYPES,
    SLIDING,
    Architecture,
    Reading,
    Rule,
    family,
    link,
)
from symconfig.descriptor.architectures.blocks import Block, Size, either
from symconfig.descriptor.architectures.hybrid import STARTS, UNLIMITED
from symconfig.descriptor.architectures.rules import LAYERNORM, all_linear, by, every
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Position

_WKV = Block("wkv", {"attention_hidden_size": either("attention_hidden_size", "hidden_size")})
_POSITIONLESS = "position=none "


def _rwkv(reader: Reading) -> None:
    """Set RWKV's heads to the attention's channels (attention_hidden_size, else hidden_size), with head_dim 1."""
    width = reader.values["attention_hidden_size"] or reader.fields["hidden_size"]
    reader.fields |= {"num_attention_heads": width, "num_key_value_heads": width, "head_dim": 1}


def _width(key: str) -> Size:
    """Return a Size of one head's channels; the key is the factor of hidden_size that all heads together have."""
    return Size(
        (key,),
        lambda values: int(values["hidden_size"] * values[key]) // values["num_heads"],
        lambda model, width: {key: model.num_attention_heads * width / model.hidden_size},
    )


_MLSTM = Block(
    "mlstm",
    {"mlstm_key_dim": _width("qk_dim_factor"), "mlstm_value_dim": _width("v_dim_factor"), "chunk_size": "chunk_size"},
)


def _xlstm(reader: Reading) -> None:
    """Set xLSTM's heads, head_dim (of the values) and intermediate_size, rounded up to the stated multiple.

    An alias that differs from its key, and channels that the heads do not divide, are problems.
    """
    values, fields = reader.values, reader.fields
    heads, hidden = values["num_heads"], fields["hidden_size"]
    for key, same in (("embedding_dim", hidden), ("num_blocks", fields["num_hidden_layers"])):
        if values[key] not in (None, same):
            return reader.problem("means the same as another key, and differs", key, got=values[key], need=str(same))
    for key in ("qk_dim_factor", "v_dim_factor"):
        if int(hidden * values[key]) % heads or values[key] <= 0:
            return reader.problem("its channels do not divide among the heads", key, got=values[key])
    fields |= {"num_attention_heads": heads, "num_key_value_heads": heads}
    fields["head_dim"] = int(hidden * values["v_dim_factor"]) // heads
    multiple = values["ffn_round_up_to_multiple_of"]
    fields["intermediate_size"] = int((hidden * values["ffn_proj_factor"] + multiple - 1) // multiple * multiple)


def _xlstm_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return num_heads, and the MLP's width as a factor of hidden_size, with rounding to multiples of 1."""
    factor = model.intermediate_size / model.hidden_size
    return {"num_heads": model.num_attention_heads, "ffn_proj_factor": factor, "ffn_round_up_to_multiple_of": 1}


_CALLS = "hybrid"  # the type of a layer that calls the shared block
# Layers of Zamba2's class that call it, where the file lists none: every sixth of the first 43, then three more.
_ZAMBA2_LAYERS = by(lambda values, i, _: i in (*range(6, 43, 6), 47, 51), _CALLS, LINEAR)


def _calls_at(values: Any, i: int, layers: int) -> bool:
    after = i > 2 and (i - 3) % values["attn_layer_period"] == values["attn_layer_offset"]
    return i == 2 or after


_ZAMBA_LAYERS = by(_calls_at, _CALLS, LINEAR)


def _shared(reader: Reading, usual: Any, block: Block) -> None:
    """Set the mixer, the shared block, head_dim (if unset) and query_pre_attn_scalar of Zamba; no layer has an own MLP.

    The layers that call it are those of type "hybrid" in layers_block_type, else of `usual`. Wrong types, heads that do
    not divide twice hidden_size, and no calling layer are problems.
    """
    fields, listed = reader.fields, reader.values["layers_block_type"]
    number, heads, twice = fields["num_hidden_layers"], fields["num_attention_heads"], 2 * fields["hidden_size"]
    types = usual(reader.values, number) if listed is None else [OLDER_TYPES.get(one, one) for one in listed]
    if len(types) != number or not set(types) <= {_CALLS, LINEAR}:
        need = f"{number} times {LINEAR!r} or {_CALLS!r}"
        reader.problem("wrong value", "layers_block_type", got=listed, need=need)
    if twice % heads:
        need = "a divisor of twice hidden_size"
        return reader.problem("out of range", "num_attention_heads", got=heads, need=need)
    if _CALLS not in types:
        what = "no layer calls attention, so nothing says that there is any"
        return reader.problem(what, "layers_block_type", need=f"some layer of type {_CALLS}")
    fields["mixers"] = [block.mixer(reader.values)]
    fields["mlp_layers"] = [False] * number
    fields["shared_block"] = {"layers": [one == _CALLS for one in types]}
    fields.setdefault("head_dim", twice // heads)
    fields["query_pre_attn_scalar"] = fields["head_dim"] / 2


def _zamba(reader: Reading) -> None:
    """Set Zamba's head_dim, if stated, and its shared block.

    An attention_hidden_size other than null or twice hidden_size is a problem.
    """
    own, twice = reader.values["attention_hidden_size"], 2 * reader.fields["hidden_size"]
    if own not in (None, twice):
        return reader.problem("out of range", "attention_hidden_size", got=own, need="twice hidden_size")
    if (width := reader.values["attention_head_dim"]) is not None:
        reader.fields["head_dim"] = width
    _shared(reader, _ZAMBA_LAYERS, blocks.zamba)


def _zamba2(reader: Reading) -> None:
    """Set Zamba2's head_dim, position and shared block with its number of copies and its adapters' ranks.

    A head_dim other than twice hidden_size / heads is a problem. use_long_context sets 16384 positions.
    """
    values, fields = reader.values, reader.fields
    width = 2 * fields["hidden_size"] // fields["num_attention_heads"]
    if values["head_dim"] not in (None, width):
        return reader.problem("out of range", "head_dim", got=values["head_dim"], need=str(width))
    fields["head_dim"] = width
    if not values["use_mem_rope"]:
        fields["position"] = "none"
    if values["use_long_context"]:
        fields["max_position_embeddings"] = 16384
    _shared(reader, _ZAMBA2_LAYERS, blocks.zamba2)
    if shared := fields.get("shared_block"):
        rank = values["adapter_rank"]
        shared |= {"blocks": min(values["num_mem_blocks"], sum(shared["layers"])), "mlp_rank": rank}
        shared["attention_rank"] = rank if values["use_shared_attention_adapter"] else 0


def _types(model: ModelDescriptor) -> dict[str, Any]:
    shared = model.shared_block
    return {} if shared is None else {"layers_block_type": [_CALLS if calls else LINEAR for calls in shared.layers]}


def _zamba_keys(model: ModelDescriptor) -> dict[str, Any]:
    own = {"attention_head_dim": model.head_dim, "attention_hidden_size": 2 * model.hidden_size}
    return {**_types(model), **own, **blocks.zamba.write(model)}


def _zamba2_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return Zamba2's layer types, state space, shared blocks, adapters and rope; empty without a shared block."""
    shared = model.shared_block
    if shared is None:
        return {}
    return {
        **_types(model),
        **blocks.zamba2.write(model),
        "num_mem_blocks": shared.blocks,
        "adapter_rank": shared.mlp_rank,
        "use_shared_attention_adapter": shared.attention_rank > 0,
        "use_mem_rope": model.position is Position.ROPE,
    }


# Four times as wide as the stream where no width is given.
_MLP_WIDTH = link(
    "intermediate_size",
    "intermediate_size",
    lambda width, reader: width or 4 * reader.fields["hidden_size"],
    lambda model: model.intermediate_size,
)


_MLP = "mlp"  # a layer of the file that is the second half of the one before


def _dory(reader: Reading) -> None:
    """Set Dory's loop and num_hidden_layers, which counts each layer as often as it runs.

    The layers between the input and the output layers run n_recurrent_loops times. Numbers of layers that do not sum up
    to num_hidden_layers are a problem. Where the file has two entries per layer, all numbers are halved.
    """
    values, fields = reader.values, reader.fields
    listed = values["layer_types"] or ()
    halves = 2 if _MLP in listed else 1  # the class writes two layers for each of its own
    layers, turns = fields["num_hidden_layers"] // halves, values["n_recurrent_loops"]
    first, last = values["n_input_layers"] // halves, values["n_output_layers"] // halves
    inner = layers - first - last if values["n_recurrent_layers"] is None else values["n_recurrent_layers"] // halves
    if inner < 1 or first + inner + last != layers or turns < 1:
        need = f"n_input_layers, n_recurrent_layers and n_output_layers that sum to {layers}, and one loop or more"
        return reader.problem("these layers do not sum up", "n_recurrent_layers", got=inner, need=need)
    held = [*range(first), *list(range(first, first + inner)) * turns, *range(first + inner, layers)]
    starts = {first + turn * inner for turn in range(turns)}
    fields |= {"num_hidden_layers": len(held), "loop.held": held, "loop.normed": True}
    fields["loop.joined"] = [index in starts for index in range(len(held))]
    if pattern := fields.get("sliding_window_pattern"):
        unrolled = [pattern[index * halves] for index in held]
        fields["sliding_window_pattern"] = None if all(unrolled) else unrolled


def _dory_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the numbers of input, recurrent and output layers, of loops, and the types of the stored layers.

    Empty for a model without a loop whose start layers are known.
    """
    loop = model.loop
    if loop is None or loop.joined is None or True not in loop.joined:
        return {}
    starts = [index for index, joins in enumerate(loop.joined) if joins]
    first, turns = starts[0], len(starts)
    repeated = [index for index, kind in enumerate(model.kind_of_layer) if kind.again]
    inner = starts[1] - first if turns > 1 else max(loop.held) + 1 - first
    held, last = max(loop.held) + 1, (len(loop.held) - 1 - repeated[-1]) if repeated else 0
    of = {held: SLIDING if slides else FULL for held, slides in zip(loop.held, model.sliding_layers, strict=True)}
    return {
        "num_hidden_layers": held,
        "n_input_layers": first,
        "n_recurrent_layers": inner,
        "n_output_layers": last,
        "n_recurrent_loops": turns,
        "layer_types": [of[index] for index in range(held)],
    }


def _hrm(reader: Reading) -> None:
    """Set HRM's loop: per cycle the low stack runs L_cycles times, then the high stack once; all H_cycles times.

    num_hidden_layers becomes the number of layer executions. Low turns outside the last L_bp_cycles of a cycle are
    detached, without gradients. Cycles < 1 and wrong L_bp_cycles are problems.
    """
    values, fields = reader.values, reader.fields
    high, low, size = values["H_cycles"], values["L_cycles"], values["num_layers_per_stack"]
    size = size or fields["num_hidden_layers"]
    trained = [2] if values["L_bp_cycles"] is None else values["L_bp_cycles"]
    if high < 1 or low < 1:
        return reader.problem("out of range", "H_cycles" if high < 1 else "L_cycles", got=min(high, low), need=">= 1")
    if not all(type(one) is int and one >= 0 for one in trained):
        return reader.problem("wrong value", "L_bp_cycles", got=trained, need="whole numbers >= 0")
    padded = [1] * max(0, high - len(trained)) + trained
    # Of each turn, whether it is trained, and its stack: the high one is always trained.
    turns = [(cycle >= low - padded[outer], int(cycle == low)) for outer in range(high) for cycle in range(low + 1)]
    places = range(size)
    fields["num_hidden_layers"] = size * len(turns)
    fields["loop.held"] = [stack * size + place for _, stack in turns for place in places]
    fields["loop.joined"] = [place == 0 for _ in turns for place in places]
    fields["loop.closed"] = [place == size - 1 for _ in turns for place in places]
    if not all(taught for taught, _ in turns):
        fields["loop.detached"] = [not taught for taught, _ in turns for _ in places]
    scale = values["embedding_scale"] or 1.0 / fields["initializer_range"]
    fields["embedding_multiplier"] = scale


def _hrm_keys(model: ModelDescriptor) -> dict[str, Any]:
    """Return the layers per stack, H_cycles, L_cycles, the trained low turns of each cycle, and the embedding's scale.

    Empty without a loop.
    """
    loop = model.loop
    if loop is None:
        return {}
    size = max(1, (max(loop.held) + 1) // 2)
    stacks = [held // size for held in loop.held[::size]]
    high = stacks.count(1)
    low = stacks.index(1) if high else len(stacks)
    taught = [not loop.is_detached(index) for index in range(0, len(loop.held), size)]
    return {
        "num_layers_per_stack": size,
        "num_hidden_layers": len(loop.held),
        "H_cycles": high,
        "L_cycles": low,
        "L_bp_cycles": [sum(taught[cycle * (low + 1) :][:low]) for cycle in range(high)],
        "embedding_scale": model.embedding_multiplier or 1.0,
    }


ARCHITECTURES: dict[str, Architecture] = {
    "rwkv": family(_POSITIONLESS + LAYERNORM + "embedding_norm gated_mlp=false hidden_act=relu2 mlp_token_shift",
        names="context_length=max_position_embeddings",
        ignored="rescale_every",  # at inference in half precision
        layers=all_linear, blocks={LINEAR: _WKV}, kinds="attention_hidden_size=COUNT intermediate_size=COUNT",
        rules=(Rule(_rwkv), _MLP_WIDTH)),
    "xlstm": family(_POSITIONLESS + UNLIMITED + "tie_word_embeddings=false",
        names="output_logit_soft_cap=final_logit_softcapping",
        # Transformers' model does not ask for the first; with the second its RMSNorms have biases, too.
        only="add_out_norm=true|false use_bias=false",
        # Which kernels run, in which precision, and how weights lie: fused ones are as many. Its class never ties.
        ignored="""autocast_kernel_dtype chunkwise_kernel eps gate_soft_cap inference_state_dtype
            max_inference_chunksize mode norm_reduction_force_float32 return_last_states sequence_kernel step_kernel
            weight_mode tie_word_embeddings""", layers=all_linear, blocks={LINEAR: _MLSTM},
        kinds="embedding_dim=COUNT num_blocks=COUNT",
        rules=(
            Rule(
                _xlstm,
                "num_heads ffn_proj_factor ffn_round_up_to_multiple_of embedding_dim num_blocks",
                _xlstm_keys,
            ),
        )),
    # Without tied weights the classes tie none at all, and each layer has a block of its own
    # (get_expanded_tied_weights_keys).
    "zamba": family(_POSITIONLESS, only="hidden_mamba_act=silu tie_word_embeddings", ignored=STARTS + "n_mamba_heads",
        kinds="mamba_dt_rank=COUNT layers_block_type=WORDS attention_head_dim=COUNT attention_hidden_size=COUNT",
        rules=(
            Rule(
                _zamba,
                """attn_layer_period attn_layer_offset layers_block_type attention_head_dim
                attention_hidden_size """
                + " ".join(blocks.zamba.keys),
                _zamba_keys,
            ),
        )),
    "zamba2": family(defaults="head_dim=null", names="add_bias_linear=mlp_bias", only="tie_word_embeddings",
        # The convolution has its bias, whatever the key says; the others the class writes, and works out again.
        ignored=STARTS
        + """use_mem_eff_path use_conv_bias hybrid_layer_ids kv_channels num_query_groups attention_hidden_size
            mamba_headdim""", kinds="layers_block_type=WORDS intermediate_size=COUNT head_dim=COUNT",
        rules=(
            Rule(
                _zamba2,
                """layers_block_type head_dim num_mem_blocks adapter_rank use_mem_rope use_shared_attention_adapter
                use_long_context """
                + " ".join(blocks.zamba2.keys),
                _zamba2_keys,
            ),
            _MLP_WIDTH,
        )),
    "dory": family(
        """hypersphere norm_weight=false norm_after_sublayer inner_norm qk_norm qk_norm_of=unit
            attention_gate=channel""", only="attention_bias=false mlp_bias=false",
        ignored="recurrent_kv_cache_mode ngpt_alpha_init",  # how a cache is filled, and how rates start
        layers=every(4), known_layers=(FULL, SLIDING, _MLP), kinds="n_recurrent_layers=COUNT",
        may_be_zero="n_input_layers n_output_layers",
        rules=(Rule(_dory, "n_input_layers n_output_layers n_recurrent_layers n_recurrent_loops", _dory_keys),)),
    "hrm_text": family("norm_weight=false final_norm=false attention_gate=channel",
        only="prefix_lm=true|false attention_bias=false|true",  # a prompt that sees itself whole
        kinds="num_layers_per_stack=COUNT L_bp_cycles=LAYERS", types="embedding_scale=float|None",
        rules=(Rule(_hrm, "H_cycles L_cycles L_bp_cycles num_layers_per_stack embedding_scale", _hrm_keys),)),
}  # fmt: skip

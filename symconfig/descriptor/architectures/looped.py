"""Families whose layers run several times for each token: NVIDIA's Dory, Sapient's HRM."""

from __future__ import annotations

from typing import Any

from symconfig.descriptor.architectures.architecture import FULL, SLIDING, Architecture, Reading, Rule, family
from symconfig.descriptor.architectures.rules import every
from symconfig.descriptor.model import ModelDescriptor

_MLP = "mlp"  # a layer of the file that is the second half of the one before


def _dory(reader: Reading) -> None:
    """Unroll each list of layers: those between the first and the last ones run in turns."""
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
    """Return how many layers run once before the loop, in it and behind it, and the types of those held."""
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
    """Read HRM: a low stack runs L_cycles times, then the high one once, all H_cycles times.

    The last turns are trained.
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
    """Return the turns of both stacks, and how many of the low one's are trained in each cycle."""
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

"""The experts' half of a layer, on one rank: router, dispatch over ep, products over etp, combination.

A token has `chosen` slots. The router sees the stream's tokens; dispatched, a rank has the slots of its own experts
from all ranks that share them out (Mixtral's layer; Megatron Core's all-to-all dispatcher).
"""

from __future__ import annotations

from tests.oracle.given import ACTIVATION, CONTENTION, ENGINE, FP32, HIDE_EXPERTS, INDEX, STREAMS, Model, Run
from tests.oracle.records import FORWARD, INPUT, Block, Message
from tests.oracle.seconds import all_to_all, ring

# Operators that the host runs for the router's choice, and to bring tokens to their experts and back (counted in
# Megatron-LM's moe/router.py and token_dispatcher.py): forward, backward.
ROUTE, DISPATCH, COMBINE = (35, 12), (12, 8), (8, 5)


def mixture(block: Block, model: Model, run: Run) -> None:
    """Between mlp_norm and mlp_residual."""
    n, h, chosen = run.stream, model.hidden, model.chosen
    modules = {"layer", "moe"}
    stream, logits = n * h * ACTIVATION, n * model.experts * FP32
    weights, places = n * chosen * FP32, n * chosen * INDEX
    load = min(run.imbalance, run.ep, model.experts / chosen)  # of all tokens a rank has no more than all
    slots = run.tokens / run.tp * chosen * load  # of a rank as many as its own tokens have
    sent = slots * h * ACTIVATION
    block.multiply("router", n, model.experts, h, modules, stream + logits)
    block.keep("mlp_norm", stream, "mlp_norm", "router")
    block.stream_through(
        "route", logits + weights + places, weights + 2 * logits + places, modules, logits + weights, ROUTE,
    )  # fmt: skip
    block.keep("router_logits", logits, "router", "route")
    block.keep("router_indices", places, "route", "route", "combine")
    # Slots come by sender, etp ranks gather theirs, and they are copied to lie by expert; the other way on their way
    # back: beside one pass over slots and tokens all slots are read and written once more, each way.
    sorts = 2 * sent * run.etp if model.experts > run.ep else 0.0
    block.stream_through(
        "dispatch", stream + places + sent, sent + stream, modules, stream + places + sent, DISPATCH, inside=True,
        sorts=sorts,
    )  # fmt: skip
    _products(block, model, run, slots * run.etp)
    block.stream_through(
        "combine", sent + weights + places + stream, stream + weights + places + sent + weights, modules,
        sent + weights + places + stream, COMBINE, inside=True, sorts=sorts,
    )  # fmt: skip
    block.keep("router_probabilities", weights, "route", "combine")
    block.dense += h * model.experts
    block.gradient_buffers += h * model.experts
    block.libraries = STREAMS * ENGINE
    _messages(block, run, sent)


def _products(block: Block, model: Model, run: Run, slots: float) -> None:
    """slots: of a rank, gathered over etp."""
    h, f, mine = model.hidden, model.width / run.etp, model.experts / run.ep
    each, modules = slots / mine, {"layer", "moe"}
    rows, part = slots * h * ACTIVATION, slots * f * ACTIVATION
    block.multiply("expert_gate_up_proj", each, 2 * f, h, modules, rows + 2 * part, mine, inside=True)
    block.keep("expert_in", rows, "dispatch", "expert_gate_up_proj")
    block.stream_through("expert_activation", 3 * part, 5 * part, modules | {"moe_act"}, 3 * part, inside=True)
    block.keep("expert_gate", part, "expert_gate_up_proj", "expert_activation")
    block.keep("expert_up", part, "expert_gate_up_proj", "expert_activation")
    block.multiply("expert_down_proj", each, h, f, modules, rows + part, mine, inside=True)
    block.keep("expert_hidden", part, "expert_activation", "expert_down_proj")
    block.expert += mine * 3 * h * f
    block.gradient_buffers += mine * 3 * h * f


def _messages(block: Block, run: Run, sent: float) -> None:
    """All-to-all over ep, and over etp a gather before the experts and a reduce-scatter after them; backward the
    transposed ones. etp is innermost in the experts' grid."""
    there_and_back = (
        ("expert_gate_up_proj", FORWARD),
        ("combine", FORWARD),
        ("expert_gate_up_proj", INPUT),
        ("combine", INPUT),
    )
    for owner, phase in there_and_back:
        seconds = all_to_all(sent, run.ep, run.etp)
        shown = _shown(block, seconds, owner, phase) if run.beside else seconds
        block.messages.append(Message("all-to-all", "ep", sent, seconds, shown, phase, owner, sent / ACTIVATION))
    gathered = sent * run.etp
    seconds = ring(gathered, run.etp, 1)
    for kind, owner, phase in (
        ("all-gather", "expert_gate_up_proj", FORWARD),
        ("reduce-scatter", "expert_down_proj", FORWARD),
        ("reduce-scatter", "expert_gate_up_proj", INPUT),
        ("all-gather", "expert_down_proj", INPUT),
    ):
        block.messages.append(Message(kind, "etp", gathered, seconds, seconds, phase, owner, gathered / ACTIVATION))


def _shown(block: Block, seconds: float, owner: str, phase: str) -> float:
    """Beside another microbatch's work of the same turn: what goes to the experts beside its pass through the experts
    in the other direction, what comes back from them beside its work outside them."""
    inside, ahead = owner != "combine", phase == FORWARD
    work = sum(
        seconds
        for op in block.operators
        if op.inside is inside
        for when, seconds in op.seconds.items()
        if (when == FORWARD) is not ahead
    )
    return max(seconds - HIDE_EXPERTS * work, CONTENTION * seconds)

"""A transformer layer on one rank, operator by operator: Megatron's tensor, sequence and context parallelism.

n: tokens of the rank between tensor-parallel regions (`stream`) or inside them (`tokens`); t = tp. Narayanan 2021,
section 2.3 (two column-parallel and two row-parallel products); Korthikanti 2022, section 4.2.2 (all-gather and
reduce-scatter in place of all-reduce, what is gathered is gathered again for the weight's gradient).
"""

from __future__ import annotations

from tests.oracle.experts import mixture
from tests.oracle.given import ACTIVATION, FP32, HIDE_RING, HIDE_TENSOR, Model, Run
from tests.oracle.records import FORWARD, GRADIENT_OF_WEIGHT, INPUT, Block, Message, Operator
from tests.oracle.seconds import all_to_all, attention, contended, hidden, ring

LAYER = "layer"


def layer(model: Model, run: Run) -> Block:
    """norm, attention, residual, norm, MLP or experts, residual."""
    block = Block("moe" if model.experts else "dense")
    stream = run.stream * model.hidden * ACTIVATION  # bytes
    _norm(block, model, run, "input_norm", {LAYER})
    block.keep("layer_in", stream, "", "input_norm")
    _attention(block, model, run)
    block.stream_through("attention_residual", 3 * stream, 3 * stream, {LAYER}, 3 * stream)
    block.keep("attention_residual", stream, "attention_residual", "mlp_norm")
    if model.experts:
        _norm(block, model, run, "mlp_norm", {LAYER, "layernorm"})
        mixture(block, model, run)
    else:
        _norm(block, model, run, "mlp_norm", {LAYER, "mlp"})
        _mlp(block, model, run)
    block.stream_through("mlp_residual", 3 * stream, 3 * stream, {LAYER}, 3 * stream)
    return block


def _norm(block: Block, model: Model, run: Run, name: str, modules: set[str]) -> None:
    """RMSNorm keeps its input and one fp32 number a token; backward reads both and the gradient, writes a gradient."""
    stream, row = run.stream * model.hidden * ACTIVATION, run.stream * FP32
    block.stream_through(name, 2 * stream + row, 3 * stream + row, modules, 2 * stream)
    block.keep(f"{name}.statistics", row, name, name)
    block.dense += model.hidden


def column_parallel(block: Block, run: Run, width: int, reader: str) -> None:
    """f (or g): what `reader` gets of the stream, and what goes back."""
    elements = run.tokens * width
    moved, share = elements * ACTIVATION, 0.0 if run.beside else HIDE_TENSOR
    beside_weight = block.seconds(reader, GRADIENT_OF_WEIGHT)
    if not run.sp:
        seconds = ring(moved, run.tp, 1, passes=2)
        shown = contended(seconds, beside_weight, share)
        block.messages.append(Message("all-reduce", "tp", moved, seconds, shown, INPUT, reader, elements))
        return
    seconds = ring(moved, run.tp, 1)
    block.messages += [
        Message("all-gather", "tp", moved, seconds, seconds, FORWARD, reader, elements),
        Message(
            "reduce-scatter", "tp", moved, seconds, contended(seconds, beside_weight, share), INPUT, reader, elements
        ),
        Message(
            "all-gather",
            "tp",
            moved,
            seconds,
            contended(seconds, block.seconds(reader, INPUT), share),
            INPUT,
            reader,
            elements,
        ),
    ]


def row_parallel(block: Block, run: Run, width: int, writer: str) -> None:
    """The conjugate: partial sums of `writer` become the stream. Nothing hides it."""
    elements = run.tokens * width
    moved = elements * ACTIVATION
    if not run.sp:
        seconds = ring(moved, run.tp, 1, passes=2)
        block.messages.append(Message("all-reduce", "tp", moved, seconds, seconds, FORWARD, writer, elements))
        return
    seconds = ring(moved, run.tp, 1)
    block.messages += [
        Message("reduce-scatter", "tp", moved, seconds, seconds, FORWARD, writer, elements),
        Message("all-gather", "tp", moved, seconds, seconds, INPUT, writer, elements),
    ]


def _attention(block: Block, model: Model, run: Run) -> None:
    n, t, h, d = run.tokens, run.tp, model.hidden, model.channels
    queries, keys = model.heads * d / t, max(model.kv_heads / t, 1) * d  # channels of a rank
    projected = (model.heads + 2 * model.kv_heads) * d / t
    q, k = n * queries * ACTIVATION, n * keys * ACTIVATION
    whole, fused = n * h * ACTIVATION, n * projected * ACTIVATION
    block.multiply("qkv_proj", n, projected, h, {LAYER}, whole + fused)
    block.keep("input_norm", run.stream * h * ACTIVATION, "input_norm", "qkv_proj")
    column_parallel(block, run, h, "qkv_proj")
    makers = {"q": "qkv_proj", "k": "qkv_proj", "v": "qkv_proj"}
    if model.kv_heads < t:
        makers = _share(block, run, q, k, n * projected * t * ACTIVATION)
    if model.qk_norm:
        for name, size, given in (("q_norm", q, "q"), ("k_norm", k, "k")):
            row = size / d / ACTIVATION * FP32
            block.stream_through(name, 2 * size + row, 3 * size + row, {LAYER}, 2 * size)
            block.keep(given, size, makers[given], name)
            block.keep(f"{name}.statistics", row, name, name)
            block.dense += d
    block.stream_through("rope_q", 2 * q, 2 * q, {LAYER}, 2 * q)
    block.stream_through("rope_k", 2 * k, 2 * k, {LAYER}, 2 * k)
    _core(block, model, run, q, k, makers["v"])
    block.multiply("o_proj", n, h, queries, {LAYER}, whole + q)
    if run.ulysses:
        _switch(block, run, q, "o_proj")
    row_parallel(block, run, h, "o_proj")
    block.dense += h * projected + queries * h
    block.gradient_buffers += h * projected + queries * h


def _share(block: Block, run: Run, q: float, k: float, everything: float) -> dict[str, str]:
    """Fewer key/value heads than ranks (Megatron-LM#2565): each gathers the queries, keys and values of all and takes
    its own; gradients of what several took are summed. Nothing runs beside it. Joining reads and writes everything
    once; backward it is filled, added to and put in order."""
    block.stream_through("take_v", 2 * everything + k, 3 * everything + 1.5 * k, {LAYER}, 2 * everything + k)
    block.stream_through("take_k", 0.0, 0.0, {LAYER}, everything + k, (0, 0))
    block.stream_through("take_q", 0.0, 0.0, {LAYER}, everything + q, (0, 0))
    seconds, elements = ring(everything, run.tp, 1), everything / ACTIVATION
    for kind, phase in (("all-gather", FORWARD), ("reduce-scatter", INPUT)):
        block.messages.append(Message(kind, "tp", everything, seconds, seconds, phase, "take_v", elements))
    return {"q": "take_q", "k": "take_k", "v": "take_v"}


def _core(block: Block, model: Model, run: Run, q: float, k: float, values: str) -> None:
    """Flash attention: a causal query sees half the keys in the mean. It keeps q, k, v, its result, and one number
    a row.

    A ring splits the queries over cp and brings it all keys and values; Ulysses splits the heads and has whole
    sequences. Both have the same number of scores.
    """
    n, d = run.tokens, model.channels
    rows = n * model.heads / run.tp  # token and head; of Ulysses cp times the tokens and a cp-th of the heads
    steps = 1 if run.ulysses else run.cp
    whole_k = k if run.ulysses else k * run.cp
    flops = 2 * rows * (run.sequence / 2) * d  # of one product
    block.operators.append(
        Operator(
            "flash_attention",
            {
                FORWARD: attention(rows, run.sequence / 2, d, steps, backward=False),
                INPUT: attention(rows, run.sequence / 2, d, steps, backward=True),
            },
            {FORWARD: 1, INPUT: 1},
            frozenset({LAYER, "core_attn"}),
            2 * q + 2 * whole_k,
            {FORWARD: 2 * flops, INPUT: 5 * flops},
        )
    )
    block.keep("q_rotated", q, "rope_q", "flash_attention")
    block.keep("k_rotated", k, "rope_k", "flash_attention")
    block.keep("v", k, values, "flash_attention")
    if run.ulysses:  # before and after the result changes places
        block.keep("attention_heads", q, "flash_attention", "flash_attention")
        block.keep("attention_heads, back", q, "flash_attention", "o_proj")
    else:
        block.keep("attention_heads", q, "flash_attention", "flash_attention", "o_proj")
    block.keep("softmax_statistics", rows * FP32, "flash_attention", "flash_attention")
    if run.ulysses:
        for amount in (q, k, k):
            _switch(block, run, amount, "flash_attention")
    else:
        for _ in ("keys", "values"):
            _round(block, run, whole_k)


def _round(block: Block, run: Run, whole: float) -> None:
    """Keys (or values) of all ranks of cp come by; their gradients are summed where they belong, while keys come by
    once more."""
    share = 0.0 if run.beside else HIDE_RING
    seconds = ring(whole, run.cp, run.tp)
    for kind, phase in (("all-gather", FORWARD), ("reduce-scatter", INPUT), ("all-gather", INPUT)):
        shown = hidden(seconds, block.seconds("flash_attention", phase), share)
        block.messages.append(Message(kind, "cp", whole, seconds, shown, phase, "flash_attention", whole / ACTIVATION))


def _switch(block: Block, run: Run, amount: float, owner: str) -> None:
    """Sequence parts become parts of the heads, or back: three copies around what travels, and all of it shows, since
    attention needs every part."""
    seconds = all_to_all(amount, run.cp, run.tp)
    for phase in (FORWARD, INPUT):
        block.messages.append(Message("all-to-all", "cp", amount, seconds, seconds, phase, owner, amount / ACTIVATION))


def _mlp(block: Block, model: Model, run: Run) -> None:
    """SwiGLU: gate and up in one product; gate, up and their product are kept."""
    n, h, f = run.tokens, model.hidden, model.width / run.tp
    whole, part = n * h * ACTIVATION, n * f * ACTIVATION
    modules = {LAYER, "mlp"}
    block.multiply("gate_up_proj", n, 2 * f, h, modules, whole + 2 * part)
    block.keep("mlp_norm", run.stream * h * ACTIVATION, "mlp_norm", "gate_up_proj")
    column_parallel(block, run, h, "gate_up_proj")
    block.stream_through("activation", 3 * part, 5 * part, modules, 3 * part)
    block.keep("gate", part, "gate_up_proj", "activation")
    block.keep("up", part, "gate_up_proj", "activation")
    block.multiply("down_proj", n, h, f, modules, whole + part)
    block.keep("mlp_hidden", part, "activation", "down_proj")
    row_parallel(block, run, h, "down_proj")
    block.dense += 3 * h * f
    block.gradient_buffers += 3 * h * f

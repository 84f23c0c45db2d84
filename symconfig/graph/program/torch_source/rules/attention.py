"""Fused attention: nothing of size queries x keys is in memory but a mask that was given."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.graph.operator import Operator
from symconfig.graph.program import build
from symconfig.graph.program.torch_source.call import Answer, Call, Result, Rule
from symconfig.graph.program.torch_source.recorder import Labels, Nest, Value
from symconfig.graph.program.torch_source.rules.reductions import STATISTIC


def _attention(call: Call) -> Answer:
    """Lower q[…, queries, d], k[…, keys, d], v[…, keys, e]; fewer key/value heads are shared by groups of query heads.

    A mask is not looked into: without `is_causal` every query attends to every key, as kernels compute it.
    """
    q: Value = call["query"]
    k, v = call["key"], call["value"]
    shape, out, heads = call.shape(q), call.result, call.size(k, -3) if k.rank > 2 else 1
    shared = call.args.get("enable_gqa") and shape[-3] != heads
    outer = [f"b{n}" for n in range(q.rank - 2)]
    result = out
    if shared:
        groups = [heads, shape[-3] // heads]
        q = call.viewed(q, [*shape[:-3], *groups, *shape[-2:]])
        result = Result((*out.shape[:-3], *groups, *out.shape[-2:]), out.element_bytes, out.floating)
    theirs, mine = outer, [*outer, "group"] if shared else outer
    queries, keys = shape[-2], call.size(k, -2)
    causal = (keys + 1) / 2 if call.args.get("is_causal") and queries == keys else float(keys)
    channels = float(shape[-1] + call.size(v, -1))
    mask = call.args.get("attn_mask")
    others: list[tuple[Value, Labels]] = []
    if mask is not None:
        if shared:
            wide = call.shape(mask)
            parts = groups if len(wide) > 2 and wide[-3] > 1 else [1, 1]
            mask = call.viewed(mask, [*wide[:-3], *parts, *wide[-2:]])
        others = [(mask, [*mine, "query", "key"][-mask.rank :])]

    def make(nest: Nest) -> Operator:
        q, k, v, *rest = nest.inputs
        return build.attention(
            nest.name,
            q,
            k,
            v=v,
            output=nest.output,
            over=nest.loops_of(["key"]),
            stats=nest.residues[0],
            attended=causal,
            channels=channels,
            others=rest,
            whole=nest.loops_of(["d", "e"]),
            path=nest.path,
        )

    y = call.emit(
        make,
        [(q, [*mine, "query", "d"]), (k, [*theirs, "key", "d"]), (v, [*theirs, "key", "e"]), *others],
        [*mine, "query", "e"],
        result=result,
        residues=[([*mine, "query"], result.shape[:-1], STATISTIC)],
    )
    return call.viewed(y, out.shape) if shared else y


RULES: Mapping[str, Rule] = {"aten.scaled_dot_product_attention": _attention}

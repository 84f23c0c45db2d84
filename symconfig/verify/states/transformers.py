"""A model's parameters as Transformers' classes and PEFT's adapters register them: names, order, what is one tensor.

Names and what stands together are those of the classes (`frameworks.deepspeed.modules`); sizes come from the weights
that the graph declares. What no module of a class is known to hold comes behind the modules that are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from symconfig.descriptor.config_writer import class_of_network
from symconfig.descriptor.model import ModelDescriptor
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.frameworks.deepspeed.modules import Modules, Rows, modules_of, stem_of
from symconfig.graph import dims as d
from symconfig.graph.model import blocks, dim_sizes
from symconfig.graph.operator import Weight

_UNKNOWN = Modules(first={}, prefix="model.layers", layers=(), last={})


@dataclass(frozen=True, slots=True, kw_only=True)
class Registered:
    """One parameter, whole. parts: elements of each of the graph's weights in it.

    vector: has one dim, as norms and biases have. expert, router: of the routed experts. split: the size of the dim
    that tensor parallelism may cut, 0 if there is none.
    """

    name: str
    parts: tuple[int, ...]
    vector: bool
    expert: bool
    router: bool
    trainable: bool
    split: int

    @property
    def elements(self) -> int:
        return sum(self.parts)


def registered(model: ModelDescriptor) -> tuple[Registered, ...]:
    """Return all parameters in the order of `model.parameters()`. A tied head is the embedding."""
    names = modules_of(class_of_network(model)) or _UNKNOWN
    kinds = {
        kind: {weight.name: weight for op in block.operators for weight in op.weights if not weight.shared}
        for kind, block in blocks(model, DEEPSPEED.implementation).items()
    }
    sizes = {name: round(size) for name, size in dim_sizes(model).items()}
    ends = dict(kinds["embedding"] | kinds["head"])
    if model.tie_word_embeddings:
        ends.pop("lm_head.weight", None)
    behind = _whole(names.last, {name: ends[name] for name in ends if not _listed(name, names.first)})
    rows = list(_of_rows("", names.first, ends, sizes, names))
    layers = {kind: _whole(names.layer(kinds[kind].keys()), kinds[kind]) for kind in set(model.layer_kinds)}
    for index, kind in enumerate(model.layer_kinds):
        rows += _of_rows(f"{names.prefix}.{index}.", layers[kind], kinds[kind], sizes, names)
    rows += _of_rows("", behind, ends, sizes, names)
    if model.adapter is None:
        return tuple(rows)
    return tuple(replace(parameter, name=f"base_model.model.{parameter.name}") for parameter in rows)


def _listed(name: str, rows: Rows) -> bool:
    return any(name in stems or stem_of(name) in stems for stems in rows.values())


def _whole(rows: Rows, weights: Mapping[str, Weight]) -> Rows:
    """Return the modules with those behind them that hold what no row does."""
    others = dict.fromkeys(stem_of(name) for name in weights if not _listed(name, rows))
    return {**rows, **{stem: (stem,) for stem in others}}


def _of_rows(
    prefix: str, rows: Rows, weights: Mapping[str, Weight], sizes: Mapping[str, int], names: Modules
) -> Iterator[Registered]:
    """Yield the parameters of some modules, each with its weight and bias, then its adapter's two matrices. A weight
    that several modules have is theirs in equal shares."""
    used: set[str] = set()
    sharers = Counter(stem for stems in rows.values() for stem in stems)
    for module, stems in rows.items():
        held = {
            suffix: [
                weights[name]
                for stem in stems
                if (name := f"{stem}{suffix}") in weights and (name not in used or sharers[stem] > 1)
            ]
            for suffix in ("", ".weight", ".bias", ".lora_A", ".lora_B")
        }
        used |= {weight.name for parts in held.values() for weight in parts}
        for suffix, parts in held.items():
            if parts:
                name = f"{prefix}{module}{_name(suffix, parts[0], bool(held['.lora_A']))}"
                one = _registered(name, parts, sizes, max(sharers[stem] for stem in stems))
                plain = suffix in ("", ".weight") and bool(names.prefix) and names != _UNKNOWN
                yield replace(one, vector=module in names.vectors) if plain else one


def _name(suffix: str, weight: Weight, adapted: bool) -> str:
    """Return the end of a weight's name.

    Experts are tensors of their own, and an adapter wraps the layer that it is on.
    """
    if weight.name.endswith((".lora_A", ".lora_B")):
        return f"{suffix}.default.weight"
    if d.EXPERTS in weight.dims:
        return {".weight": "", ".bias": "_bias"}[suffix]
    return f".base_layer{suffix}" if adapted else suffix


def _registered(name: str, parts: list[Weight], sizes: Mapping[str, int], sharers: int) -> Registered:
    dims = parts[0].dims
    cut = [dim for dim in dims if dim in d.TENSOR_DIMS]
    return Registered(
        name=name,
        parts=tuple(d.elements(weight.dims).whole(sizes) // sharers for weight in parts),
        vector=len(dims) == 1 or (name.endswith("bias") and d.EXPERTS not in dims),
        expert=d.EXPERTS in dims,
        router=parts[0].name.startswith("router."),
        trainable=not parts[0].frozen,
        split=sizes[cut[0]] if cut else 0,
    )

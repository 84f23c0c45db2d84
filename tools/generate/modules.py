"""Write what modules Transformers' classes are made of into symconfig: `python -m tools generate modules`.

A small model of each family is built on the meta device, and each of its tensors is held against the weights that
symconfig's graph declares for the same layer: a tensor is one of them, several that the class has in one, or an equal
share of one. Between tensors of one size names decide, and then the order.
"""

from __future__ import annotations

import difflib
import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import torch
import transformers
from huggingface_hub.errors import StrictDataclassError

from symconfig.descriptor.architectures.keys import class_of
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.write import config_json
from symconfig.errors import SymconfigError
from symconfig.frameworks.deepspeed.adapters import FILE
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED
from symconfig.graph import dims as d
from symconfig.graph.model import blocks, dim_sizes
from tests.descriptor.small_configs import FURTHER, small_config, tiny_config

Rows = dict[str, list[str]]
Sized = list[tuple[str, int]]
_IN_LAYER = re.compile(r"(.+?)\.(\d+)\.(.+)")
_MOST_IN_ONE = 5
_MORE = 6
# Not every draw is a model, to the import or to the class.
_NO_MODEL = (AttributeError, KeyError, StrictDataclassError, SymconfigError, TypeError, ValueError)
_HALF = 0.5  # of two names' letters are common


def rows(kind: str) -> list[Rows]:
    """Return the modules of each kind of a family's layers, as the graph's weights that each holds.

    Further small models may have further layers: of other kinds, or with modules that an option adds.
    """
    found = _rows_of(small_config(kind), kind)
    drawn = [tiny_config(kind, seed) for seed in range(_MORE)]
    for data in [small_config(kind) | FURTHER[kind], *drawn] if kind in FURTHER else drawn:
        try:
            more = _rows_of(data, kind)
        except _NO_MODEL:
            continue
        found += [rows for rows in more if not any(_same(rows, one) for one in found)]
    return found


def _rows_of(data: dict[str, Any], kind: str) -> list[Rows]:
    model = import_config(data, "config.json", kind)
    config = config_json(model)
    made = transformers.AutoConfig.for_model(config.pop("model_type"), **config)
    with torch.device("meta"):
        built = transformers.AutoModelForCausalLM.from_config(made)
    layers: dict[int, Sized] = {}
    inside = [(match, tensor) for name, tensor in built.named_parameters() if (match := _IN_LAYER.fullmatch(name))]
    prefix = Counter(match[1] for match, _ in inside).most_common(1)[0][0]
    for match, tensor in inside:
        if match[1] == prefix:
            layers.setdefault(int(match[2]), []).append((match[3], tensor.numel()))
    return _rows_inside(model, layers)


def _rows_inside(model: ModelDescriptor, layers: Mapping[int, Sized]) -> list[Rows]:
    weights, found = _weights(model), dict[str, Rows]()
    for index, tensors in layers.items():
        kind = model.layer_kinds[index]
        if kind not in found:
            found[kind] = _matched(tensors, weights[kind])
    apart: list[Rows] = []
    for rows in found.values():
        if not any(_same(rows, one) for one in apart):
            apart.append(rows)
    return apart


def _same(one: Rows, other: Rows) -> bool:
    """Whether two layers hold the same weights."""
    return {stem for stems in one.values() for stem in stems} == {stem for stems in other.values() for stem in stems}


def _weights(model: ModelDescriptor) -> dict[str, Sized]:
    sizes = {name: round(size) for name, size in dim_sizes(model).items()}
    tied = ("lm_head.weight",) if model.tie_word_embeddings else ()
    return {
        kind: [
            (weight.name, round(d.elements(weight.dims).value(sizes)))
            for op in block.operators
            for weight in op.weights
            if not weight.shared and weight.name not in tied
        ]
        for kind, block in blocks(model, DEEPSPEED.implementation).items()
    }


def _matched(tensors: Sized, weights: Sized) -> Rows:
    """Return the stems of the weights that each module holds."""
    left, found = list(weights), Rows()
    namesakes = {(_leaf(name), size) for name, size in tensors}
    for name, size in tensors:
        module = _stem(name)
        others = [one for one in left if (_stem(one[0]), one[1]) not in namesakes or _stem(one[0]) == _leaf(name)]
        held = _of_module(found.get(module, ()), size, left) or _held(name, size, others)
        if held is None:
            raise ValueError(f"no weights make up {name} of {size} elements among {left}")
        for weight in held:
            left.remove(weight)
        if (rest := sum(weight[1] for weight in held) - size) > 0:  # other modules have the other shares
            left.insert(0, (held[0][0], rest))
        if "experts" in name:
            module = module.removesuffix("_bias")
        if _unnamed(name):
            module = name
        stems = found.setdefault(module, [])
        bare = module == name and "experts" not in name and not _unnamed(name)
        stems += [stem for weight, _ in held if (stem := weight if bare else _stem(weight)) not in stems]
    if left:
        raise ValueError(f"no tensor is {left}")
    return found


def _of_module(stems: Sequence[str], size: int, left: Sized) -> Sequence[tuple[str, int]]:
    """Return the biases of the weights that a module holds, where they are as large together."""
    mine = [weight for weight in left if weight[0].endswith("bias") and _stem(weight[0]) in stems]
    return mine if sum(weight[1] for weight in mine) == size else ()


def _held(name: str, size: int, left: Sized) -> Sequence[tuple[str, int]] | None:
    """Return the weights that a tensor is, or None."""
    fit = [weight for weight in left if _may_be(name, weight[0])]
    same = [weight for weight in fit if weight[1] == size]
    if same:
        return [max(same, key=lambda weight: _alike(name, weight[0]))]
    for number in range(2, _MOST_IN_ONE + 1):
        sums = [some for some in combinations(fit, number) if sum(weight[1] for weight in some) == size]
        if sums:
            return max(sums, key=lambda some: sum(_alike(name, weight[0]) for weight in some))
    for number in range(2, _MOST_IN_ONE + 1):
        wholes = [weight for weight in fit if weight[1] == number * size]
        if wholes:
            return [max(wholes, key=lambda weight: _alike(name, weight[0]))]
    return None


def _may_be(name: str, weight: str) -> bool:
    """Whether names allow it: biases are biases, and experts, shared ones and norms are called so."""
    if name.endswith("bias") != weight.endswith("bias"):
        return False
    experts = ("experts." in name and "attention" not in name) or _unnamed(name)
    return weight.startswith("expert_") == (experts and "shared" not in name)


def _unnamed(name: str) -> bool:
    """Whether a tensor of experts is that of a module whose name does not say so (GraniteMoeParallelExperts)."""
    return "experts." not in name and "shared" not in name and name.endswith("put_linear.weight")


def _alike(name: str, weight: str) -> float:
    mine, theirs = _stem(name), _stem(weight)
    leaf = _leaf(name)
    same = 2.0 * theirs.endswith(leaf) + ("shared" in mine) * ("shared" in theirs)
    half = difflib.SequenceMatcher(None, leaf, theirs).ratio() >= _HALF  # of less the order knows more
    letter = leaf[0] == theirs[0] and leaf.endswith("_proj") and theirs.endswith("_proj")  # out_proj is o_proj
    bare = not name.endswith((".weight", ".bias")) and not weight.endswith((".weight", ".bias"))
    router = leaf == "gate" and theirs == "router"
    beside = 0.2 * ("mlp" in mine and "attention" in theirs)  # a layer may have two routers
    mixer = 0.2 * ("attn" in mine and theirs.startswith("attention_"))  # or two gates
    return same + half + bare + router + mixer - beside + 0.1 * ("norm" in mine) * ("norm" in theirs) + 0.05 * letter


def _leaf(name: str) -> str:
    """Return a tensor's module without those around it; a weight of that name and size is no other tensor's."""
    return _stem(name).rsplit(".", 1)[-1]


def _stem(weight: str) -> str:
    return re.sub(r"\.(weight|bias)$", "", weight)


def families() -> Iterator[str]:
    """Yield the families that are read and that transformers has a class of."""
    for kind, table in architectures().items():
        if table.text_of is None and class_of(kind) is not None:
            yield kind


def main() -> None:
    """Write the file that symconfig reads."""
    lines = []
    for kind in families():
        try:
            lines.append(f"{json.dumps(kind)}: {json.dumps(rows(kind))}")
        except _NO_MODEL as error:
            print(f"{kind}: {str(error)[:200]}")
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    print(f"{len(lines)} families of transformers {transformers.__version__}")

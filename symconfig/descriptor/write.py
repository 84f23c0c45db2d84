"""Descriptors as readable YAML, which the strict loader reads back to the same descriptors; and a model as the
`config.json` that it could have come from: the inverse of the import, by the same tables.

A key of `config.json` is written where the import would read it to a field; what a block or a rule reads is written by
it. What the file then says is read back: `lost_fields` names what is lost.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import yaml

from symconfig.descriptor.architectures.architecture import CHUNKED, FULL, INDEXED, SLIDING, Architecture
from symconfig.descriptor.architectures.keys import (
    ACTIVATIONS,
    NULL_IS_NONE,
    SAME_NETWORK,
    class_of,
    defaults,
    families,
    row_of,
)
from symconfig.descriptor.architectures.registry import architectures
from symconfig.descriptor.architectures.rules import shared_experts
from symconfig.descriptor.cluster import ClusterDescriptor, Kernels
from symconfig.descriptor.document import plain, shorten
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.meaning import TRAINED, flat, meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Keys, Mlp
from symconfig.errors import InfeasibleError, InputError, Problem, nearest
from symconfig.format import nested

Json = dict[str, Any]
_WIDTH = 116


class _Dumper(yaml.SafeDumper):
    """A dumper that keeps lists of numbers on one line, and quotes texts that YAML 1.2 reads as other values."""


def _listed(dumper: yaml.SafeDumper, items: list[Any]) -> yaml.Node:
    numbers = not any(isinstance(item, str | list | dict) for item in items)
    return dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=numbers)


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    try:
        quoted = not isinstance(plain(text), str)
    except ValueError:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_Dumper.add_representer(list, _listed)
_Dumper.add_representer(str, _text)


def descriptor_yaml(model: ModelDescriptor) -> str:
    """Return the model as YAML text: the fields that differ from their default, in the class's order."""
    return _dump(model.model_dump(mode="json", by_alias=True, exclude_defaults=True))


def cluster_yaml(cluster: ClusterDescriptor) -> str:
    """Return the cluster as YAML text: all fields that were set, in the class's order."""
    return _dump(cluster.model_dump(mode="json", by_alias=True, exclude_unset=True))


def kernels_yaml(kernels: Kernels) -> str:
    """Return the kernel constants as YAML text of a file that clusters can name; unset ones are left out."""
    return _dump({"schema": "symconfig.kernels/1", **kernels.model_dump(mode="json", exclude_none=True)})


def _dump(fields: dict[str, Any]) -> str:
    text: str = yaml.dump(fields, Dumper=_Dumper, sort_keys=False, width=_WIDTH, allow_unicode=True)
    if text.replace("\n", "").isprintable():
        return text
    return yaml.dump(fields, Dumper=_Dumper, sort_keys=False, width=_WIDTH)  # control or bidi characters


def config_json(model: ModelDescriptor) -> Json:
    """Return the content of the `config.json` of the model's Transformers class.

    use_cache is false, pad_token_id null unless a rule sets it; sizes of blocks are written where they differ from the
    class's default. Keys `section.key` go into sections, and aliases get the class's spelling. What the class cannot
    express is left out: see `lost_fields`. Raises InfeasibleError where Transformers has no class.
    """
    kind, architecture = _family(model)
    values = _values(model, architecture, kind)
    values |= dict(_windows(model, architecture, {**architecture.defaults, **values}))
    values |= dict(_experts(model, architecture))
    for rule in architecture.rules:
        values |= rule.write(model) if rule.write is not None else {}
    head = {"architectures": [class_of(kind)], "model_type": kind}
    # A padding token is a tokenizer's, and would have to lie inside a tiny model's vocabulary; some classes demand one.
    padding = values.pop("pad_token_id", None)
    tail = {"torch_dtype": model.torch_dtype, "use_cache": False, "pad_token_id": padding}
    config = {**head, **values, **tail}
    own = defaults(families()[kind])
    for block in architecture.blocks.values():
        sizes = block.write(model).items()
        config |= {key: value for key, value in sizes if key not in config and value != own.get(key)}
    # The class's own spelling of keys that the import reads under another.
    other = {key: name for name, key in architecture.same_as.items() if name in own and key not in own}
    return nested({other.get(key, key): value for key, value in config.items()})


@lru_cache(maxsize=128)
def lost_fields(model: ModelDescriptor) -> tuple[Problem, ...]:
    """Return a Problem for each field that the model loses in its class's `config.json`, cached; empty if none.

    Found by reading the written file back. Errors of writing or reading are returned as Problems, not raised.
    """
    try:
        config = config_json(model)
        reread = import_config(config, "config.json", "model")
    except InfeasibleError as error:
        return error.problems
    except InputError as error:
        return tuple(replace(problem, file=None, line=None, column=None) for problem in error.problems)
    what = f"Transformers' {config['architectures'][0]} has no field for it"
    lost = differences(model, reread)
    return tuple(Problem(what, field=name, got=ours, need=theirs) for name, ours, theirs in lost)


def differences(model: ModelDescriptor, reread: ModelDescriptor) -> Iterator[tuple[str, str, str]]:
    """Yield (field, value of `model`, value of `reread`), both as text, of fields that differ in meaning, by name.

    Names, notes, the adapter and fields without effect are not compared; a field that has no effect in `model`, but in
    `reread`, is compared by its literal value.
    """
    mine, theirs, plain = _computed(model), _computed(reread), flat(model)  # plain: what stands for nothing in it, too
    for name in sorted({*mine, *theirs}):
        if (own := mine.get(name, plain.get(name))) != theirs.get(name):
            yield name, _as_text(own), _as_text(theirs.get(name))


def class_of_network(model: ModelDescriptor) -> str:
    """Return the model_type of the Transformers class that computes the model; of a multimodal one its text model's."""
    kind = SAME_NETWORK.get(model.model_type, model.model_type)
    known = architectures().get(kind)
    return kind if known is None or known.text_of is None else known.text_of[1]


def _family(model: ModelDescriptor) -> tuple[str, Architecture]:
    """Return (model_type, its table) of the model's class in Transformers; that of the text model if it is multimodal.

    Raises InfeasibleError if no class for causal modelling is known, with a similar family as hint, or if Transformers
    has this type only inside a multimodal model.
    """
    known, kind = architectures(), class_of_network(model)
    if kind in known and kind not in families() and row_of(kind) is not None:
        what = f"Transformers has {kind} inside a multimodal model only: AutoModelForCausalLM builds none of it alone"
        raise InfeasibleError(what, field="model_type")
    if kind not in known or class_of(kind) is None:
        similar = nearest(kind, (name for name in known if class_of(name) is not None))
        others = "a family of docs/reference/models.md"
        hint = f"{similar}, or {others}" if similar else others
        what = f"Transformers has no class for {shorten(model.model_type)!r} whose config.json is known"
        raise InfeasibleError(what, field="model_type", hint=hint)
    return kind, known[kind]


def _values(model: ModelDescriptor, architecture: Architecture, kind: str) -> Json:
    """Return the keys that copy descriptor fields, by the table's first field for each, and rope's keys.

    Left out are keys whose fields the class fixes or the model lacks, and None where null would mean the class's
    default. hidden_act gets the class's spelling; a whole float becomes an int where the default is one. Rope's keys
    are flat, or `rope_parameters` for an unscaled model of a class that scales rope by layer type.
    """
    fields, values = _fields(model), Json()
    for key, default in architecture.defaults.items():
        named = [name for name in architecture.fields_of(key) if name not in architecture.constants]
        value = fields.get(named[0]) if named else None
        if not named or (value is None and named[0] not in fields):
            continue
        if value is None and not (default is None or key in NULL_IS_NONE):
            continue  # the class has no word for none
        if named[0] == "hidden_act":
            value = _activation(str(value), default)
        elif isinstance(value, float) and value.is_integer() and type(default) is int:
            value = int(value)
        values[key] = value
    keys = architecture.defaults
    if "rope_scaling" not in keys:
        return values
    # No flat key expresses that a class with sections by layer type has its own scaling.
    if model.rope_scaling is None and keys["rope_scaling"] is not None and "rope_local_base_freq" in keys:
        flat_keys = ("rope_theta", "rope_local_base_freq", "partial_rotary_factor")
        return {key: value for key, value in values.items() if key not in flat_keys} | _rope_parameters(model, kind)
    return values | _rope(model, architecture)


def _fields(model: ModelDescriptor) -> Json:
    """Return the model's JSON fields by dotted name: sections become `section.field`, an empty section its own name.

    Flags that the model and its experts omit because they are as in most models (`rare`) are filled in.
    """
    values: Json = {}
    for name, value in model.model_dump(mode="json").items():
        opened = value.items() if isinstance(value, dict) else ()
        values |= {f"{name}.{inner}": item for inner, item in opened} or {name: value}
    # What a descriptor leaves out where it is as in most models, a class may have otherwise.
    for holder, at in (model, ""), (model.experts, "experts."):
        left_out = () if holder is None else holder.rare
        values |= {at + name: value for name in left_out if isinstance(value := getattr(holder, name), bool)}
    return values


def _activation(name: str, default: object) -> str:
    """Return an activation as Transformers spells it, in the class's own spelling where that means the same."""
    if ACTIVATIONS.get(str(default)) == name:
        return str(default)
    return next((spelling for spelling, meant in ACTIVATIONS.items() if meant == name), name)


def _rope(model: ModelDescriptor, architecture: Architecture) -> Json:
    """Return rope's flat keys that the class has: rope_scaling, original_max_position_embeddings (without one the
    context length) and rope_local_base_freq (without one rope_theta).

    Without scaling, rope_scaling is left out, or {"rope_type": "default"} if null would mean the class's own.
    """
    keys, values = architecture.defaults, Json()
    scaling = model.rope_scaling.model_dump(mode="json", exclude_none=True) if model.rope_scaling else {}
    if scaling or keys["rope_scaling"] is not None:
        values["rope_scaling"] = scaling or {"rope_type": "default"}
    if "original_max_position_embeddings" in keys:
        original = scaling.get("original_max_position_embeddings", model.max_position_embeddings)
        values["original_max_position_embeddings"] = original
    if "rope_local_base_freq" in keys:
        values["rope_local_base_freq"] = model.rope_local_base_freq or model.rope_theta
    return values


def _rope_parameters(model: ModelDescriptor, kind: str) -> Json:
    """Return rope_parameters: the class's own sections for full and for windowed layers, with the model's bases; both
    have rope_theta if it has no local base.
    """
    own, local = families()[kind]["rope"], model.rope_local_base_freq or model.rope_theta
    bases = {FULL: model.rope_theta, SLIDING: local}
    return {"rope_parameters": {name: {**own[name], "rope_theta": base} for name, base in bases.items()}}


def _computed(model: ModelDescriptor) -> dict[str, object]:
    """Return what the model computes and how it is trained, by field, without its adapter."""
    plain = flat(model)
    trained = {name: plain.get(name) for name in TRAINED}
    return {name: value for name, value in {**meaning(model), **trained}.items() if not name.startswith("adapter.")}


def _as_text(value: object) -> str:
    if isinstance(value, list) and value and all(isinstance(one, dict) and "block" in one for one in value):
        return ", ".join(str(one["block"]) for one in value)
    return "none" if value is None else shorten(value)


Pairs = Iterator[tuple[str, Any]]


def _windows(model: ModelDescriptor, architecture: Architecture, values: Mapping[str, Any]) -> Pairs:
    """Yield the keys of the window's or chunk's width, use_sliding_window and layer_types, where the class has them.

    The width is written if a layer has a window, or the class would have one by default (then None). layer_types is
    left out if all layers are full, the class has them so without it, and it has no blocks.
    """
    defaults, windows = architecture.defaults, any(model.sliding_layers)
    width = "attention_chunk_size" if model.chunked_attention else "sliding_window"
    own: Json = {}
    unless = _default_types(architecture, values, model.num_hidden_layers)
    if width in defaults and (windows or (defaults[width] is not None and unless != [FULL] * len(unless))):
        own[width] = model.sliding_window
    if "use_sliding_window" in defaults:
        own["use_sliding_window"] = windows
    yield from own.items()
    types = list(_types(model, architecture))
    usual = _default_types(architecture, {**values, **own}, model.num_hidden_layers)
    if "layer_types" in defaults and (architecture.blocks or not types == usual == [FULL] * len(types)):
        yield "layer_types", types


def _types(model: ModelDescriptor, architecture: Architecture) -> Iterator[str]:
    """Yield each layer's type in the class's words: its block, else chunked, sliding, indexed or full attention.

    A block that the class does not name counts as attention.
    """
    called = {block.name: kind for kind, block in reversed(tuple(architecture.blocks.items()))}
    for kind in model.kind_of_layer:
        own = kind.beside or (None if kind.attends else kind.mixer)
        if own is not None and own in called:
            yield called[own]
        else:
            full = INDEXED if kind.keys is not Keys.ALL and INDEXED in architecture.known_layers else FULL
            yield (CHUNKED if model.chunked_attention else SLIDING) if kind.window else full


def _default_types(architecture: Architecture, values: Mapping[str, Any], layers: int) -> list[str]:
    """Return each layer's type if the file has no layer_types: the class's list if it has one, else `usual_layers`."""
    listed = architecture.defaults.get("layer_types")
    return listed if isinstance(listed, list) else architecture.usual_layers(values, layers)


def _experts(model: ModelDescriptor, architecture: Architecture) -> Pairs:
    """Yield the keys of shared experts, topk_method, groups and the layers with experts, where the class has them.

    Without groups, topk_method is greedy and n_group and topk_group are 1. mlp_only_layers lists layers without experts
    among those that moe_layer_freq would give some; it is left out if the class has mlp_layer_types. Nothing for a
    dense model.
    """
    experts, defaults = model.experts, architecture.defaults
    if experts is None:
        return
    if "n_shared_experts" in defaults and (write := shared_experts("n_shared_experts").write):
        yield from write(model).items()
    if architecture.groups_with is not None:
        yield "topk_method", architecture.groups_with if experts.n_group else "greedy"
    for key in ("n_group", "topk_group"):
        if key in defaults and getattr(experts, key) is None:
            yield key, 1  # the choice among all is that among one group
    kinds = [kind.mlp for kind in model.kind_of_layer]
    if "mlp_layer_types" in defaults:
        yield "mlp_layer_types", ["sparse" if one is Mlp.MOE else "dense" for one in kinds]
    elif "mlp_only_layers" in defaults:
        every = experts.moe_layer_freq
        dense = [index for index, one in enumerate(kinds) if one is not Mlp.MOE and (index + 1) % every == 0]
        yield "mlp_only_layers", dense

"""Reads one `config.json` by its architecture's table: types, unknown keys, and the rules no table can hold."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, get_args

from symconfig.descriptor.architectures.architecture import CHUNKED, FULL, INDEXED, OLDER_TYPES, SLIDING, Reading
from symconfig.descriptor.architectures.class_defaults import whole_heads
from symconfig.descriptor.architectures.keys import (
    ACTIVATIONS,
    COMMON_IGNORED,
    COMMON_NOTED,
    COMMON_ONLY,
    KINDS,
    NULL_IS_NONE,
    RULED,
    Derived,
    fits,
    idle_unless_read,
    spoken,
    type_of,
    words,
)
from symconfig.descriptor.architectures.rules import shared_experts, with_experts
from symconfig.descriptor.document import shorten
from symconfig.descriptor.layers import Streams
from symconfig.descriptor.model import NOT_SET, ModelDescriptor
from symconfig.descriptor.sections import ROPE_FIELDS, Experts, Indexer, LatentAttention, RopeScaling
from symconfig.descriptor.strict import MAX_LAYERS, Strict

DTYPE_KEYS = ("torch_dtype", "dtype")
_SECTIONS: Mapping[str, type[Strict]] = {
    "experts": Experts, "latent": LatentAttention, "indexer": Indexer, "streams": Streams,
}  # fmt: skip


class ConfigReader(Reading):
    """A reader of one `config.json` by its architecture's table; gathers problems, notes and fields."""

    def read(self) -> dict[str, Any]:
        """Return the descriptor's fields by dotted name; empty, with `problems`, if the file cannot be read.

        Fills `values`, `fields`, `key_of` and `notes`; moves keys of sections and aliases within `data`.
        """
        for section in self.architecture.sections & self.data.keys():
            inner = self.data.pop(section)
            if isinstance(inner, Mapping):
                self.data |= {f"{section}.{key}": one for key, one in inner.items() if key not in COMMON_IGNORED}
            elif inner is not None:
                self.problem("wrong value", section, got=repr(inner), need="an object")
        for other, key in self.architecture.same_as.items():
            if other in self.data:
                value = self.data.pop(other)
                if self.data.setdefault(key, value) != value:
                    need = repr(self.data[key])
                    self.problem(f"differs from {key}, which means the same", other, got=value, need=need)
        self._check_keys()
        defaults = self.architecture.defaults
        values = {key: self._value(key, default) for key, default in defaults.items() if self.architecture.is_read(key)}
        if self.problems:
            return {}
        self.values = values = {key: self._derive(value, values) for key, value in values.items()}
        self.fields = fields = {"model_type": self.data["model_type"]}
        for key, value in values.items():
            for field in self.architecture.fields_of(key):
                if value is not None or not _needs_value(field):
                    fields[field] = value
                    self.key_of[field] = key
        fields |= self.architecture.constants
        name = fields["hidden_act"] if "hidden_act" in fields else fields.setdefault("hidden_act", "silu")
        if name in ACTIVATIONS:
            fields["hidden_act"] = ACTIVATIONS[name]
        elif "hidden_act" not in self.architecture.constants:
            need = "one of " + ", ".join(ACTIVATIONS)
            self.problem("this activation is not known", self.key_of["hidden_act"], got=name, need=need)
        _rope(self)
        _layers(self)
        _experts(self)
        for rule in self.architecture.rules if not self.problems else ():
            rule.read(self)
        if self.problems:
            return {}
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
        if fields.get("attention") == "mla":  # every head has its own key and value, however many the file names
            fields["head_dim"] = fields["latent.v_head_dim"]
            fields["num_key_value_heads"] = fields["num_attention_heads"]
        elif "head_dim" not in fields:
            sizes = {name: fields[name] for name in ("hidden_size", "num_attention_heads")}
            fields["head_dim"] = self._derive(Derived.HEAD_DIM, sizes)
        dtype = self.data.get("torch_dtype") or self.data.get("dtype")
        if isinstance(dtype, str) and dtype != "auto":
            fields["torch_dtype"] = dtype.removeprefix("torch.")
            self.key_of["torch_dtype"] = "torch_dtype" if self.data.get("torch_dtype") else "dtype"
        for key, sentence in {**COMMON_NOTED, **self.architecture.noted}.items():
            if self.data.get(key) and self.data[key] != fields.get("hidden_dropout"):
                self.notes.append(sentence)
        return fields

    def _check_keys(self) -> None:
        """Append a problem for each unknown key, and for values that are not supported for this family.

        Unknown keys that are null or false are only noted.
        """
        table = self.architecture
        known = {*table.defaults, *table.ignored, *table.noted, *COMMON_IGNORED, *COMMON_NOTED, *DTYPE_KEYS}
        if "rope_scaling" in table.defaults:
            known.add("rope_parameters")
        left_out = {*table.ignored, *table.noted, *COMMON_IGNORED, *COMMON_NOTED}
        unread = {k: v for k, v in table.defaults.items() if k not in left_out and not table.is_read(k)}
        classed = {k: (v, None) for k, v in unread.items() if not idle_unless_read(k)}
        common = {key: need for key, need in COMMON_ONLY.items() if key not in table.defaults}
        only: dict[str, tuple[Any, ...]] = {**common, **classed, **table.only}
        for key, value in self.data.items():
            if key in only:
                if value not in only[key]:
                    need = " or ".join(repr(item) for item in only[key])
                    self.problem(f"not supported for {self.data['model_type']}", key, got=repr(value), need=need)
            elif key in known or idle_unless_read(key):
                continue
            elif value is None or value is False:
                self.notes.append(f"{shorten(key)} {NOT_SET}")
            else:
                what = "this key is not known and may change the architecture"
                hint = "remove it if it has no effect on the model"
                unknown = self.document.problem(what, self.path(key), of_key=True, got=shorten(value), hint=hint)
                self.problems.append(unknown)

    def _value(self, key: str, default: Any) -> Any:
        """Return the key's value, or its default if it is absent or null; a wrong type or range is a problem.

        Null stays None where it means that there is none. A missing key without default that a field requires is a
        problem.
        """
        if key not in self.data:
            if default is None and any(_needs_value(field) for field in self.architecture.fields_of(key)):
                self.problem("this key is missing", key)
            return default
        value = self.data[key]
        kind = self.architecture.kinds.get(key)
        if kind is not None:
            if value is not None and value != default and not KINDS[kind][1](value):
                self.problem("wrong value", key, got=repr(value), need=KINDS[kind][0])
            return default if value is None else value
        if value is None:
            return None if key in NULL_IS_NONE and key != "rope_scaling" else default
        if key in RULED and key not in _TYPED_RULES:
            return value
        types = type_of(key, default, self.architecture.types.get(key))
        if not types:
            return value
        if not fits(value, types):
            self.problem("wrong value", key, got=repr(value), need=spoken(types))
            return value
        if not isinstance(value, int | float):
            return value
        positive = key in _POSITIVE and key not in self.architecture.may_be_zero
        if value is not False and value != default and (value < 0 or (value == 0 and positive)):
            self.problem("out of range", key, got=repr(value), need="> 0" if positive else ">= 0")
        elif key in _LAYERS and value > MAX_LAYERS:
            self.problem("out of range", key, got=repr(value), need=f"<= {MAX_LAYERS:,}")
        elif isinstance(value, int) and value >= 2**63:
            self.problem("out of range", key, got=repr(value), need="< 2^63")
        return value

    def _derive(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Return the value, or if it is a `Derived` what follows from other keys.

        LAYERS: the number of listed layers, 0 without a list. HEAD_DIM is rounded down; it is a problem if the heads do
        not divide hidden_size where the family's class refuses that.
        """
        if not isinstance(value, Derived):
            return value
        if value is Derived.LAYERS:
            listed = values.get("layer_types") or values.get("hybrid_override_pattern")
            return len(listed) if isinstance(listed, list | str) else 0
        hidden = values.get("hidden_size") or values["n_embd"]
        heads = values.get("num_attention_heads") or values["n_head"]
        if value is Derived.HEADS:
            return heads
        if value is Derived.FOUR_TIMES_HIDDEN:
            return 4 * hidden
        if hidden % heads and whole_heads(self.data["model_type"]):
            what = "hidden_size is not divisible by num_attention_heads, and head_dim is not given"
            self.problem(what, "hidden_size", got=hidden, need=f"a multiple of {heads}")
        return hidden // heads


def _needs_value(field: str) -> bool:
    """Return whether the descriptor's field cannot be None; False for unknown fields."""
    section, _, leaf = field.rpartition(".")
    holder: type[Strict] = _SECTIONS[section] if section else ModelDescriptor
    info = holder.model_fields.get(leaf)
    return info is not None and type(None) not in get_args(info.annotation)


_TYPED_RULES = ("sliding_window", "max_window_layers", "use_sliding_window", "sliding_window_pattern")
_LAYERS = ("num_hidden_layers", "n_layer")
_POSITIVE = words(
    """vocab_size hidden_size n_embd intermediate_size n_inner num_hidden_layers n_layer num_attention_heads n_head
    num_key_value_heads head_dim kv_channels max_position_embeddings n_positions moe_intermediate_size num_experts
    num_local_experts n_routed_experts num_experts_per_tok kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta rotary_emb_base initializer_range decoder_sparse_step
    sliding_window_pattern window_size attn_layer_period expert_layer_period full_attention_interval mamba_n_heads
    linear_num_key_heads block_multiple_of attention_multiplier logits_scaling hybrid_override_pattern conv_kernel
    state_size ssm_state_size chunk_size n_groups num_heads mamba_num_heads mamba_head_dim mamba_d_state mamba_d_conv
    mamba_chunk_size mamba_n_groups mamba_expand expand linear_num_value_heads linear_key_head_dim linear_value_head_dim
    linear_conv_kernel_dim linear_num_heads linear_head_dim conv_L_cache o_groups o_lora_rank"""
)


_ROPE_KEYS = {*RopeScaling.model_fields, "type", "rope_theta", "partial_rotary_factor"}
_ROPE_IDLE = {
    "finetuned": None,
    "max_position_embeddings": None,  # of the file again
    "mrope_section": None,  # which channels turn by an image's rows and columns: no cost
    "mrope_interleaved": None,
    "alpha": "alpha of rope_scaling stretches rope's base, which changes no shape and no cost, and is left out",
    "llama_4_scaling_beta": "llama_4_scaling_beta scales queries by their position, which changes no shape and no cost",
}
# Rope on part of a head with the angles of a whole one, which changes no shape and no cost (modeling_rope_utils.py).
_PROPORTIONAL = "proportional"
_MOE_LAYERS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}


def _rope(reader: Reading) -> None:
    """Set rope_theta, partial_rotary_factor and rope_scaling from rope_scaling or rope_parameters.

    Does nothing for a model without rope. Unknown keys and types are problems; keys without effect are noted.
    """
    fields, data = reader.fields, reader.data
    if fields.get("position", "rope") != "rope":
        return
    key = "rope_scaling" if data.get("rope_scaling") else "rope_parameters"
    raw = data.get(key) or reader.values.get("rope_scaling") or {}
    if not isinstance(raw, Mapping):
        return reader.problem("wrong value", key, got=repr(raw), need="an object")
    if isinstance(raw.get("main"), Mapping):  # beside a section of compressed keys (DeepSeek-V4)
        raw = raw["main"]
    if "rope_local_base_freq" in fields and {FULL, SLIDING, INDEXED}.intersection(raw):
        raw = _rope_by_layer_type(reader, key, raw)
    for sentence in (note for k, note in _ROPE_IDLE.items() if note is not None and (data.get(key) or {}).get(k)):
        reader.notes.append(sentence)
    for unknown in (k for k in raw if k not in _ROPE_KEYS and k not in _ROPE_IDLE and raw[k] is not None):
        if unknown == "attention_factor" and _is_usual_factor(raw):
            continue
        reader.problem("this key is not known and may change the architecture", key, unknown, got=raw[unknown])
    latent = fields.get("attention") == "mla"  # whose heads have a part for rope, of which a fraction says nothing
    for field in ("rope_theta",) if latent else ("rope_theta", "partial_rotary_factor"):
        if raw.get(field) is not None:
            fields[field] = raw[field]
    if "partial_rotary_factor" not in reader.key_of and fields.get("partial_rotary_factor", 1.0) != 1.0:
        what, got = "rope on part of a head is not supported here", fields["partial_rotary_factor"]
        reader.problem(what, key, "partial_rotary_factor", got=got, need="1.0")
    scaling = _rope_scaling(raw, fields["max_position_embeddings"], reader.values)
    if scaling is not None:
        kind = scaling["rope_type"]
        needed, optional = ROPE_FIELDS.get(str(kind), ((), tuple(scaling)))
        known = ("rope_type", "factor", *needed, *optional)
        if idle := [
            name for name in scaling if name not in known
        ]:  # Transformers' function for this type reads no more
            reader.notes.append(f"what {key} has for other types than {kind} is left out: {', '.join(idle)}")
            scaling = {name: value for name, value in scaling.items() if name not in idle}
        fields["rope_scaling"] = scaling
        reader.key_of["rope_scaling"] = key


def _rope_by_layer_type(reader: Reading, key: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the rope section of layers without a window, and set rope_local_base_freq from that with one.

    Scaled rope on layers with a window, and sections that are no objects, are problems; for those the result is empty.
    """
    local, whole = raw.get(SLIDING) or {}, raw.get(FULL) or raw.get(INDEXED) or {}
    if not isinstance(local, Mapping) or not isinstance(whole, Mapping):
        reader.problem("wrong value", key, got=repr(raw), need="an object for each kind of layer")
        return {}
    base = local.get("rope_theta", reader.fields.get("rope_local_base_freq"))
    if base is not None:
        reader.fields["rope_local_base_freq"] = base
    if local.get("rope_type", "default") != "default":
        reader.problem("scaled rope on sliding-window layers is not supported", key, got=local["rope_type"])
    return whole


def _is_usual_factor(raw: Mapping[str, Any]) -> bool:
    """Return whether YaRN's attention_factor is the one that Transformers derives where none is written.

    Source: transformers' modeling_rope_utils.py, _compute_yarn_parameters. Olmo 3 writes it out.
    """
    written, factor = raw["attention_factor"], raw.get("factor")
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (written, factor))
    if raw.get("rope_type", raw.get("type")) != "yarn" or not numbers or raw.get("mscale"):
        return False
    return math.isclose(written, 0.1 * math.log(max(float(factor or 1), 1.0)) + 1.0, rel_tol=1e-6)


def _rope_scaling(raw: Mapping[str, Any], longest: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the scaling with Transformers' defaults filled in; None if rope is not scaled.

    longest: the model's max_position_embeddings, the default of original_max_position_embeddings.
    """
    kind = raw.get("rope_type", raw.get("type")) or "default"
    phi3 = values.get("original_max_position_embeddings")
    if phi3 and kind in ("su", "yarn"):  # Phi-3's older spellings
        kind = "longrope"
    if kind in ("default", "mrope", _PROPORTIONAL):
        return None
    scaling = {name: raw[name] for name in RopeScaling.model_fields if raw.get(name) is not None} | {"rope_type": kind}
    if phi3:
        scaling["original_max_position_embeddings"] = phi3
    if kind in ("llama3", "yarn", "longrope"):
        scaling.setdefault("original_max_position_embeddings", longest)
    original = scaling.get("original_max_position_embeddings")
    if kind == "longrope" and isinstance(original, int) and original > 0:
        scaling.setdefault("factor", longest / original)
    return scaling


def _layers(reader: Reading) -> None:
    """Set windows and mixers by each layer's type; nothing if neither file nor class gives types."""
    values, fields = reader.values, reader.fields
    types = _layer_types(reader)
    if types is None:
        return
    _windows(reader, types)
    mixers = []
    for kind, block in reader.architecture.blocks.items():
        mine = [one == kind for one in types]
        if any(mine):
            mixers.append({**block.mixer(values), **({} if all(mine) else {"layers": mine})})
    if mixers:
        fields["mixers"] = mixers


def _layer_types(reader: Reading) -> list[str] | None:
    """Return each layer's type: listed in the file, else as the class fills it in.

    None if all are full: no list and no rule, or windows are switched off; also, with a problem, for a wrong list.
    """
    values, number, rule = reader.values, reader.fields["num_hidden_layers"], reader.architecture.layers
    listed = values.get("layer_types")
    if values.get("use_sliding_window") is False and not reader.architecture.blocks:
        return None
    if listed is None:
        return None if rule is None else list(rule(values, number))
    known = (*reader.architecture.known_layers, *reader.architecture.blocks)
    if isinstance(listed, list):
        listed = [OLDER_TYPES.get(kind, kind) if isinstance(kind, str) else kind for kind in listed]
    if not isinstance(listed, list) or len(listed) != number or any(str(kind) not in known for kind in listed):
        need = f"{number} times " + " or ".join(repr(kind) for kind in known)
        reader.problem("wrong value", "layer_types", got=listed, need=need)
        return None
    return [str(kind) for kind in listed]


def _windows(reader: Reading, types: list[str]) -> None:
    """Set sliding_window, its pattern and chunked_attention by the layers' types.

    The window is deleted where no layer has it or no width is given; the pattern is left out if all layers have it.
    """
    fields, chunked = reader.fields, CHUNKED in types
    window = reader.values.get("attention_chunk_size" if chunked else "sliding_window")
    pattern = [kind in (SLIDING, CHUNKED) for kind in types]
    fields.pop("sliding_window", None)
    if not window or not any(pattern):
        return
    fields["sliding_window"] = window
    if chunked:
        fields["chunked_attention"] = True
    if not all(pattern):
        fields["sliding_window_pattern"] = pattern


def _experts(reader: Reading) -> None:
    """Set shared experts, expert groups and the layers with experts; wrong lists of layers are problems."""
    values, fields, architecture = reader.values, reader.fields, reader.architecture
    if "n_shared_experts" in values and "experts.moe_intermediate_size" in fields:
        shared_experts("n_shared_experts").read(reader)
    if architecture.groups_with not in (None, reader.data.get("topk_method")):
        fields["experts.n_group"] = fields["experts.topk_group"] = None
    number = fields["num_hidden_layers"]
    listed, dense = values.get("mlp_layer_types"), values.get("mlp_only_layers")
    if listed:
        if not isinstance(listed, list) or len(listed) != number or any(str(one) not in _MOE_LAYERS for one in listed):
            return reader.problem("wrong value", "mlp_layer_types", got=listed, need=f"{number} times dense or sparse")
        with_experts(fields, [_MOE_LAYERS[one] for one in listed])
    elif dense:
        if not isinstance(dense, list) or not all(type(i) is int and 0 <= i < number for i in dense):
            return reader.problem("wrong value", "mlp_only_layers", got=dense, need=f"layers from 0 to {number - 1}")
        every = fields.get("experts.moe_layer_freq", 1)
        with_experts(fields, [i not in dense and (i + 1) % every == 0 for i in range(number)])

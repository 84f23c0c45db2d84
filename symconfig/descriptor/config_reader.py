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
        """Return the descriptor's fields by dotted name; {} with `problems` if the file's keys cannot be read.

        Fills `values` (by key, with the class's defaults), `fields`, `key_of` (key of each field) and `notes` (what is
        left out). In `data` it replaces the table's sections by keys `section.key`, and aliases (`same_as`) by the
        usual key; a section that is no object, and an alias that contradicts its key, are problems. Fields without a
        key get: the table's constants, hidden_act silu, key-value heads as many as heads (with latent attention
        always), head_dim from latent v_head_dim or hidden_size / heads. torch_dtype comes from torch_dtype or dtype,
        unless "auto".
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
        """Append a problem for each unknown key, and for each value that this family does not support (`only`).

        A key of the class that the table does not read must have the class's default, unless it is about loss weights
        or drafting (`idle_unless_read`); such keys are skipped, known or not. Unknown keys that are null or false are
        only noted.
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
        """Return the key's value in the file, else its default; a wrong value appends a problem and is still returned.

        Null gives the default too, except for keys in NULL_IS_NONE (other than rope_scaling), where it is None. An
        absent key without a default is a problem if a field needs it. Values of keys with a kind (KINDS) are checked by
        it; those of rules (RULED) are not checked. Others must have the key's type; numbers, unless equal to the
        default, must be >= 0 (> 0 for sizes), layers at most MAX_LAYERS, integers < 2^63.
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
        """Return the value, or if it is a `Derived` what follows from `values`, the other keys.

        LAYERS: the length of layer_types, else of hybrid_override_pattern, 0 without either. HEADS: the attention
        heads. FOUR_TIMES_HIDDEN: 4 * hidden_size. HEAD_DIM: hidden_size // heads; a remainder is a problem where the
        family's class refuses it.
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
    """Set rope_theta, partial_rotary_factor and rope_scaling from the file's rope_scaling, else rope_parameters.

    Without both, the class's own section is read; nothing happens for a model without rope. Only the part `main`, or
    that of layers without a window (`_rope_by_layer_type`), is read if there is one; latent attention takes no partial
    factor. Problems are a section that is no object, unknown keys with a value (but for YaRN's usual attention_factor),
    and rope on part of a head where no key of the family sets it. Keys without effect, or of another rope_type, are
    left out with a note.
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
    """Return the part of a rope section for layers without a window; the other part sets rope_local_base_freq.

    raw: the value of `key`, with a part for each layer type. Without a rope_theta in the window's part, the field
    stays. Scaled rope on layers with a window is a problem; parts that are no objects are one too, and then {} is
    returned.
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
    """Return whether the section is YaRN with the attention_factor that Transformers derives where none is written.

    That is 0.1 ln(factor) + 1, at least 1. False for other types, with mscale, or if a number is missing. Source:
    transformers' modeling_rope_utils.py, _compute_yarn_parameters. Olmo 3 writes it out.
    """
    written, factor = raw["attention_factor"], raw.get("factor")
    numbers = all(isinstance(one, int | float) and not isinstance(one, bool) for one in (written, factor))
    if raw.get("rope_type", raw.get("type")) != "yarn" or not numbers or raw.get("mscale"):
        return False
    return math.isclose(written, 0.1 * math.log(max(float(factor or 1), 1.0)) + 1.0, rel_tol=1e-6)


def _rope_scaling(raw: Mapping[str, Any], longest: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return RopeScaling's fields of a rope section, with Transformers' defaults; None if rope is not scaled.

    Not scaled are no type, default, mrope and proportional. Phi-3's su and yarn (models with
    original_max_position_embeddings among `values`) become longrope, whose factor is longest / original by default.

    longest: the model's max_position_embeddings, the default of the original one for llama3, yarn and longrope.
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
    """Set windows (`_windows`) and the field `mixers` by each layer's type; nothing if `_layer_types` gives None.

    A mixer is set for each of the architecture's blocks that some layer has; its `layers` only if not all have it.
    """
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
    """Return each layer's type: listed in the file, else by the rule of the class; None to set nothing.

    None if the file lists none and the class has no rule, if use_sliding_window is false and the family has no blocks,
    and after a problem is recorded: the list has a wrong length or unknown types. Older names of types are replaced.
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
    """Set sliding_window, sliding_window_pattern and chunked_attention by the layers' types.

    The width is that of attention_chunk_size if any layer is chunked, else of sliding_window. sliding_window is removed
    from the fields if no layer is windowed or chunked, or no width is given; the pattern is set only if not all layers
    are.
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
    """Set fields of shared experts, expert groups and which layers have experts.

    Groups become None if the table ties them to a topk_method and the file has another. Layers come from
    mlp_layer_types (`dense`, `sparse`, …), else from mlp_only_layers together with moe_layer_freq; with neither they
    stay as read. A list of wrong length or content is a problem.
    """
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

"""Reads one `config.json` by its architecture's table: types, unknown keys, and the rules no table can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from symconfig.descriptor.architectures.architecture import CHUNKED, OLDER_TYPES, SLIDING, Reading
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
    recorded,
    spoken,
    type_of,
    words,
)
from symconfig.descriptor.architectures.rope import read_rope
from symconfig.descriptor.architectures.rules import shared_experts, with_experts
from symconfig.descriptor.document import shorten
from symconfig.descriptor.model import NOT_SET, ModelDescriptor
from symconfig.descriptor.sections import Experts, Indexer, LatentAttention, Streams
from symconfig.descriptor.strict import MAX_LAYERS, Strict

DTYPE_KEYS = ("torch_dtype", "dtype")
_SECTIONS: Mapping[str, type[Strict]] = {
    "experts": Experts, "latent": LatentAttention, "indexer": Indexer, "streams": Streams,
}  # fmt: skip


class ConfigReader(Reading):
    """A reader of one `config.json` by its architecture's table; gathers problems, notes and fields."""

    def read(self) -> dict[str, Any]:
        """Return the descriptor's fields by dotted name; {} if `problems` were found in keys, values, or by a rule.

        Fills `values` (by key, with the class's defaults), `fields`, `key_of` (key of each field) and `notes` (what is
        left out). Fields without a key get the table's constants, hidden_act silu, and what `_complete` derives.
        torch_dtype comes from torch_dtype or dtype, unless "auto".
        """
        self._flatten()
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
        read_rope(self)
        _layers(self)
        _experts(self)
        for rule in self.architecture.rules if not self.problems else ():
            rule.read(self)
        if self.problems:
            return {}
        self._complete()
        dtype = self.data.get("torch_dtype") or self.data.get("dtype")
        if isinstance(dtype, str) and dtype != "auto":
            fields["torch_dtype"] = dtype.removeprefix("torch.")
            self.key_of["torch_dtype"] = "torch_dtype" if self.data.get("torch_dtype") else "dtype"
        for key, sentence in {**COMMON_NOTED, **self.architecture.noted}.items():
            if self.data.get(key) and self.data[key] != fields.get("hidden_dropout"):
                self.notes.append(sentence)
        return fields

    def _flatten(self) -> None:
        """Replace the table's sections in `data` by keys `section.key`, and aliases (`same_as`) by the usual key, in
        place. Keys of a section in COMMON_IGNORED are dropped.

        A section that is no object, and an alias that contradicts its key, are recorded as problems.
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

    def _complete(self) -> None:
        """Set the heads of keys and values to the attention heads, and head_dim to hidden_size / heads, where the file
        has none; with latent attention always, and head_dim to that of values.
        """
        fields = self.fields
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
        if fields.get("attention") == "mla":  # every head has its own key and value, however many the file names
            fields["head_dim"] = fields["latent.v_head_dim"]
            fields["num_key_value_heads"] = fields["num_attention_heads"]
        elif "head_dim" not in fields:
            sizes = {name: fields[name] for name in ("hidden_size", "num_attention_heads")}
            fields["head_dim"] = self._derive(Derived.HEAD_DIM, sizes)

    def _check_keys(self) -> None:
        """Append a problem for each unknown key, and for each value that is not supported; note unknown keys that are
        null or false.

        Supported are only the values of COMMON_ONLY and of the table's `only`, and the class's default or null for keys
        that the table does not read, except those that are `idle_unless_read`.
        """
        table = self.architecture
        left_out = {*table.ignored, *table.noted, *COMMON_IGNORED, *COMMON_NOTED}
        known = {*table.defaults, *left_out, *DTYPE_KEYS}
        known |= {"rope_parameters"} if "rope_scaling" in table.defaults else set()
        common = {key: need for key, need in COMMON_ONLY.items() if key not in table.defaults}
        unread = {k: v for k, v in table.defaults.items() if k not in left_out and not table.is_read(k)}
        classed = {k: (v, None) for k, v in unread.items() if not idle_unless_read(k)}
        only = {**common, **classed, **table.only}
        unset = self.check_keys(self.data, only, known, self.data["model_type"], "architecture")
        self.notes += [f"{shorten(key)} {NOT_SET}" for key in unset]

    def _value(self, key: str, default: Any) -> Any:
        """Return the key's value in the file, else its default; null is the default too, except for NULL_IS_NONE.

        A key that is absent and has no default is recorded as a problem if a field needs it.
        """
        value = self.data.get(key)
        if value is not None:
            self._check_value(key, value, default)
            return value
        if key not in self.data and default is None and any(map(_needs_value, self.architecture.fields_of(key))):
            self.problem("this key is missing", key)
        null = key in self.data and key in NULL_IS_NONE and key != "rope_scaling"
        return None if null else default

    def _check_value(self, key: str, value: Any, default: Any) -> None:
        """Append a problem if the value is not of its type (`type_of`) or a number out of its range.

        The default is of its type and in range. Not checked are keys that rules read (RULED), but for _TYPED_RULES, and
        ranges of types in KINDS.
        """
        types = type_of(key, default, self.architecture.types.get(key))
        if not types or (key in RULED and key not in _TYPED_RULES) or (types in KINDS and value == default):
            return
        if not fits(value, types):
            self.problem("wrong value", key, got=repr(value), need=spoken(types))
        elif isinstance(value, int | float) and value is not False and value != default and types not in KINDS:
            self._check_range(key, value)

    def _check_range(self, key: str, value: float) -> None:
        """Append a problem for a number < 0 (or 0, of a key in _POSITIVE that the table does not let be zero), above
        MAX_LAYERS layers, or an integer >= 2^63.
        """
        positive = key in _POSITIVE and key not in self.architecture.may_be_zero
        need = ""
        if value < 0 or (value == 0 and positive):
            need = "> 0" if positive else ">= 0"
        elif key in _LAYERS and value > MAX_LAYERS:
            need = f"<= {MAX_LAYERS:,}"
        elif isinstance(value, int) and value >= 2**63:
            need = "< 2^63"
        if need:
            self.problem("out of range", key, got=repr(value), need=need)

    def _derive(self, value: Any, values: Mapping[str, Any]) -> Any:
        """Return the value, or if it is a `Derived` what follows from `values`, the other keys.

        LAYERS: the length of layer_types, else of hybrid_override_pattern, 0 without either. HEADS: the attention
        heads. FOUR_TIMES_HIDDEN: 4 * hidden_size. HEAD_DIM: hidden_size // heads; a remainder is recorded as a problem
        where the family's class refuses it.
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
        if hidden % heads and recorded(self.data["model_type"], "whole_heads") is not False:
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
    linear_conv_kernel_dim linear_num_heads linear_head_dim conv_L_cache o_groups o_lora_rank global_head_dim"""
)


_MOE_LAYERS = {"dense": False, "sparse": True, "moe": True, "hash_moe": True}


def _layers(reader: Reading) -> None:
    """Set windows (`_windows`) and the field `mixers` by each layer's type; nothing after a problem (`_layer_types`).

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
    """Return each layer's type: listed in the file, else as usual in the family (`usual_layers`).

    None after a problem is recorded: the list has a wrong length or unknown types. Older names of types are replaced,
    and the list is not read if use_sliding_window is false, unless the family has blocks.
    """
    values, number, table = reader.values, reader.fields["num_hidden_layers"], reader.architecture
    listed = values.get("layer_types")
    if listed is None or (values.get("use_sliding_window") is False and not table.blocks):
        return table.usual_layers(values, number)
    known = (*table.known_layers, *table.blocks)
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
    stay as read. A list of wrong length or content is recorded as a problem.
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

"""Reads one `config.json` by its architecture's table: types, unknown keys, and the rules no table can hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, get_args

from symconfig.descriptor import config_rules as rules
from symconfig.descriptor.architectures.architecture import Reading
from symconfig.descriptor.architectures.class_defaults import whole_heads
from symconfig.descriptor.architectures.keys import (
    ACTIVATIONS,
    COMMON_IGNORED,
    COMMON_NOTED,
    COMMON_ONLY,
    FRACTIONS,
    NULL_IS_NONE,
    RULED,
    Derived,
    idle_unless_read,
    words,
)
from symconfig.descriptor.document import shorten
from symconfig.descriptor.layers import Streams
from symconfig.descriptor.model import NOT_SET, ModelDescriptor
from symconfig.descriptor.sections import Experts, Indexer, LatentAttention
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
        rules.rope(self)
        rules.layers(self)
        rules.experts(self)
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


_SPOKEN = {
    "bool": "true or false", "int": "a whole number", "float": "a number", "str": "text", "list": "a list",
    "dict": "an object", "list[int]": "a list of whole numbers", "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
}  # fmt: skip
_OF_JSON: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,), "int": (int,), "float": (int, float), "str": (str,), "list": (list,), "dict": (dict,)
}  # fmt: skip


def type_of(key: str, default: object, annotated: str | None) -> str:
    """Return the types that a key's value may have, joined by `|`: as annotated, else its default's.

    Empty (any type) if there is neither an annotation nor a default.
    """
    if key in FRACTIONS:
        return "float"
    if annotated is not None:
        return "|".join(word for word in annotated.split("|") if word != "None")
    if default is None:
        return ""
    kind = "int" if isinstance(default, Derived) else type(default).__name__
    return "list" if kind == "tuple" else kind


def fits(value: Any, types: str) -> bool:
    """Return whether a value is of one of the types, joined by `|`; true and false are no numbers, int is a float."""
    return any(_is(value, one) for one in types.split("|"))


def spoken(types: str) -> str:
    """Return the types, joined by `|`, as a message names them: "a whole number or a list"."""
    return " or ".join(_SPOKEN.get(one, one) for one in types.split("|"))


# Values of keys whose default does not show what they are: what is needed, and whether a value fits.
KINDS: Mapping[str, tuple[str, Callable[[Any], bool]]] = {
    "COUNT": ("a whole number > 0, or nothing", lambda value: type(value) is int and 0 < value < 2**63),
    "LAYERS": ("a list of layers, or nothing", lambda value: fits(value, "list[int]")),
    "WORDS": ("a list of words, or nothing", lambda value: bool(value) and fits(value, "list[str]")),
    "SECTION": ("an object, or nothing", lambda value: fits(value, "dict")),
    "NUMBER": ("a number of any sign", lambda value: fits(value, "float") and abs(value) < 2**63),
}


def _is(value: Any, one: str) -> bool:
    outer, _, inner = one.partition("[")
    if not isinstance(value, _OF_JSON[outer]) or (isinstance(value, bool) and outer != "bool"):
        return False
    return not inner or (isinstance(value, list) and all(_is(item, inner.rstrip("]")) for item in value))

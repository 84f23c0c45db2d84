"""Reads one `config.json` by its architecture's table: types, unknown keys, and the rules no table can hold."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from symconfig.descriptor.architectures.architecture import Architecture, Derived, Window
from symconfig.descriptor.architectures.keys import (
    ACTIVATIONS,
    COMMON_IGNORED,
    COMMON_NOTED,
    COMMON_ONLY,
    FRACTIONS,
    NAMES,
    NULL_IS_NONE,
    RULED,
    words,
)
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.model import MAX_LAYERS, RopeScaling
from symconfig.errors import Problem

DTYPE_KEYS = ("torch_dtype", "dtype")
_ROPE_KEYS = {*RopeScaling.model_fields, "type", "rope_theta", "partial_rotary_factor", "finetuned"}
_ROPE_KEYS |= {"mrope_section", "mrope_interleaved"}  # which channels turn by an image's rows and columns: no cost


class ConfigReader:
    """Reads one `config.json` by its architecture's table; collects problems, notes and the descriptor's fields."""

    def __init__(
        self, data: Mapping[str, Any], architecture: Architecture, document: Document, prefix: KeyPath
    ) -> None:
        self.architecture = architecture
        self.document = document
        self.prefix = prefix
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.key_of: dict[str, str] = {}
        self.data = self._one_spelling(data)

    def read(self) -> dict[str, Any]:
        """Descriptor fields by dotted name. With problems the result is incomplete."""
        self._check_keys()
        values = {key: self._value(key, default) for key, default in self.architecture.defaults.items()}
        if self.problems:
            return {}
        values = {key: self._derive(value, values) for key, value in values.items()}
        fields: dict[str, Any] = {"model_type": self.data["model_type"]}
        for key, value in values.items():
            if key not in RULED:
                for field in self.architecture.names.get(key) or NAMES.get(key) or (key,):
                    fields[field] = value
                    self.key_of[field] = key
        fields |= self.architecture.constants
        self._activation(fields)
        self._rope(fields, values)
        self._window(fields, values)
        self._experts(fields, values)
        self._attention(fields)
        self._dtype(fields)
        if self.architecture.gate_and_up_in_one:
            if fields["intermediate_size"] % 2:
                self.problem("is not even, but counts both halves of the gated MLP", "intermediate_size")
            fields["intermediate_size"] //= 2
        for key, sentence in {**COMMON_NOTED, **self.architecture.noted}.items():
            if self.data.get(key) and self.data[key] != fields.get("hidden_dropout"):
                self.notes.append(sentence)
        return fields

    def problem(self, what: str, key: str, *more: str | int, got: object = None, need: str | None = None) -> None:
        shown = None if got is None else shorten(got)
        self.problems.append(self.document.problem(what, (*self.prefix, key, *more), got=shown, need=need))

    def _one_spelling(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """The data with second spellings of a key replaced by the first."""
        result = {str(key): value for key, value in data.items()}
        for other, key in self.architecture.same_as.items():
            if other in result:
                value = result.pop(other)
                if result.setdefault(key, value) != value:
                    self.problem(f"differs from {key}, which means the same", other, got=value, need=repr(result[key]))
        return result

    def _check_keys(self) -> None:
        """Every key is read, checked, noted or known to have no effect."""
        table = self.architecture
        known = {*table.defaults, *table.ignored, *table.noted, *COMMON_IGNORED, *COMMON_NOTED, *DTYPE_KEYS}
        if "rope_scaling" in table.defaults:
            known.add("rope_parameters")
        only = {**{key: need for key, need in COMMON_ONLY.items() if key not in table.defaults}, **table.only}
        for key, value in self.data.items():
            if key in only:
                if value not in only[key]:
                    need = " or ".join(repr(item) for item in only[key])
                    self.problem(f"not supported for {self.data['model_type']}", key, got=repr(value), need=need)
            elif key in known:
                continue
            elif value is None or value is False:
                self.notes.append(f"{shorten(key)} is not known, and is not set in config.json: left out")
            else:
                what = "this key is not known and may change the architecture"
                hint = "remove it if it has no effect on the model"
                at = (*self.prefix, key)
                self.problems.append(self.document.problem(what, at, of_key=True, got=shorten(value), hint=hint))

    def _value(self, key: str, default: Any) -> Any:
        """The key's value, of the type that its default has."""
        if key not in self.data:
            if default is None and key not in NULL_IS_NONE:
                self.problem("this key is missing", key)
            return default
        value = self.data[key]
        if value is None and (key in NULL_IS_NONE or isinstance(default, Derived)):
            return default if isinstance(default, Derived) or key == "rope_scaling" else None
        if key in RULED and key not in _TYPED_RULES:
            return value
        if isinstance(default, bool):
            right, need = isinstance(value, bool), "true or false"
        elif isinstance(default, float) or key in FRACTIONS:
            right, need = isinstance(value, int | float) and not isinstance(value, bool), "a number"
        elif isinstance(default, str):
            right, need = isinstance(value, str), "text"
        else:
            right, need = isinstance(value, int) and not isinstance(value, bool), "a whole number"
        if not right:
            self.problem("wrong value", key, got=repr(value), need=need)
        elif value is not False and not isinstance(value, str) and (value < 0 or (value == 0 and key in _POSITIVE)):
            self.problem("out of range", key, got=repr(value), need="> 0" if key in _POSITIVE else ">= 0")
        elif key in _LAYERS and value > MAX_LAYERS:
            self.problem("out of range", key, got=repr(value), need=f"<= {MAX_LAYERS:,}")
        elif isinstance(value, int) and value >= 2**63:
            self.problem("out of range", key, got=repr(value), need="< 2^63")
        return value

    def _derive(self, value: Any, values: Mapping[str, Any]) -> Any:
        if not isinstance(value, Derived):
            return value
        hidden = values.get("hidden_size") or values["n_embd"]
        heads = values.get("num_attention_heads") or values["n_head"]
        if value is Derived.HEADS:
            return heads
        if value is Derived.FOUR_TIMES_HIDDEN:
            return 4 * hidden
        if hidden % heads:
            self.problem(
                "hidden_size is not divisible by num_attention_heads, and head_dim is not given",
                "hidden_size",
                got=hidden,
                need=f"a multiple of {heads}",
            )
        return hidden // heads

    def _activation(self, fields: dict[str, Any]) -> None:
        name = fields["hidden_act"] if "hidden_act" in fields else fields.setdefault("hidden_act", "silu")
        if name in ACTIVATIONS:
            fields["hidden_act"] = ACTIVATIONS[name]
        elif "hidden_act" not in self.architecture.constants:
            self.problem(
                "this activation is not known",
                self.key_of["hidden_act"],
                got=name,
                need="one of " + ", ".join(ACTIVATIONS),
            )

    def _rope(self, fields: dict[str, Any], values: Mapping[str, Any]) -> None:
        """rope_scaling (before transformers 5) or rope_parameters; both may hold the base and the fraction too."""
        if fields.get("position", "rope") != "rope":
            return
        key = "rope_scaling" if self.data.get("rope_scaling") else "rope_parameters"
        raw = self.data.get(key) or values.get("rope_scaling") or {}
        if not isinstance(raw, Mapping):
            return self.problem("wrong value", key, got=repr(raw), need="an object")
        if "rope_local_base_freq" in fields and ("full_attention" in raw or "sliding_attention" in raw):
            raw = self._rope_by_layer_type(fields, key, raw)
        for unknown in (k for k in raw if k not in _ROPE_KEYS and raw[k] is not None):
            self.problem("this key is not known and may change the architecture", key, unknown, got=raw[unknown])
        for field in ("rope_theta", "partial_rotary_factor"):
            if raw.get(field) is not None:
                fields[field] = raw[field]
        if "partial_rotary_factor" not in self.key_of and fields.get("partial_rotary_factor", 1.0) != 1.0:
            got = fields["partial_rotary_factor"]
            self.problem(
                "rope on part of a head is not supported here", key, "partial_rotary_factor", got=got, need="1.0"
            )
        scaling = _rope_scaling(raw, fields["max_position_embeddings"], values)
        if scaling is not None:
            fields["rope_scaling"] = scaling
            self.key_of["rope_scaling"] = key

    def _rope_by_layer_type(self, fields: dict[str, Any], key: str, raw: Mapping[str, Any]) -> Mapping[str, Any]:
        """Gemma 3 in transformers 5: one section for sliding-window layers, one for the others, which is returned."""
        local, whole = raw.get("sliding_attention") or {}, raw.get("full_attention") or {}
        if not isinstance(local, Mapping) or not isinstance(whole, Mapping):
            self.problem("wrong value", key, got=repr(raw), need="an object for each kind of layer")
            return {}
        fields["rope_local_base_freq"] = local.get("rope_theta", fields["rope_local_base_freq"])
        if local.get("rope_type", "default") != "default":
            self.problem("scaled rope on sliding-window layers is not supported", key, got=local["rope_type"])
        return whole

    def _window(self, fields: dict[str, Any], values: Mapping[str, Any]) -> None:
        window, layers = values.get("sliding_window"), fields["num_hidden_layers"]
        if self.architecture.window is None or not window or values.get("use_sliding_window") is False:
            return
        kinds = values.get("layer_types")
        if kinds is not None:
            names = {"sliding_attention": True, "full_attention": False}
            if not isinstance(kinds, list) or len(kinds) != layers or any(str(kind) not in names for kind in kinds):
                self.problem(
                    "wrong value",
                    "layer_types",
                    got=kinds,
                    need=f"{layers} times 'full_attention' or 'sliding_attention'",
                )
                return
            pattern = [names[str(kind)] for kind in kinds]
        else:
            pattern = _window_pattern(self.architecture.window, values, layers)
        if any(pattern):
            fields["sliding_window"] = window
            if not all(pattern):
                fields["sliding_window_pattern"] = pattern

    def _experts(self, fields: dict[str, Any], values: Mapping[str, Any]) -> None:
        if "n_shared_experts" in values:
            shared = values["n_shared_experts"] or 0
            if not isinstance(shared, int) or isinstance(shared, bool) or shared < 0:
                return self.problem("wrong value", "n_shared_experts", got=shared, need="a whole number")
            fields["experts.shared_expert_intermediate_size"] = shared * fields["experts.moe_intermediate_size"]
        if self.architecture.groups_with not in (None, self.data.get("topk_method")):
            fields["experts.n_group"] = fields["experts.topk_group"] = None
        dense = values.get("mlp_only_layers")
        if dense:
            leading = isinstance(dense, list) and sorted(map(str, dense)) == sorted(map(str, range(len(dense))))
            if not leading or fields["experts.moe_layer_freq"] != 1:
                self.problem("only leading dense layers are supported", "mlp_only_layers", got=dense, need="[0, 1, …]")
            else:
                fields["experts.first_k_dense_replace"] = len(dense)

    def _attention(self, fields: dict[str, Any]) -> None:
        """Every head has its own key and value, however many the file names, where attention is plain or latent."""
        fields.setdefault("num_key_value_heads", fields["num_attention_heads"])
        if fields.get("attention") == "mla":
            fields["head_dim"] = fields["latent.v_head_dim"]
            fields["num_key_value_heads"] = fields["num_attention_heads"]
        elif "head_dim" not in fields:
            fields["head_dim"] = self._derive(
                Derived.HEAD_DIM,
                {"hidden_size": fields["hidden_size"], "num_attention_heads": fields["num_attention_heads"]},
            )

    def _dtype(self, fields: dict[str, Any]) -> None:
        dtype = self.data.get("torch_dtype") or self.data.get("dtype")
        if isinstance(dtype, str) and dtype != "auto":
            fields["torch_dtype"] = dtype.removeprefix("torch.")
            self.key_of["torch_dtype"] = "torch_dtype" if self.data.get("torch_dtype") else "dtype"


_TYPED_RULES = ("sliding_window", "max_window_layers", "use_sliding_window", "sliding_window_pattern")
_LAYERS = ("num_hidden_layers", "n_layer")
_POSITIVE = words(
    """vocab_size hidden_size n_embd intermediate_size n_inner num_hidden_layers n_layer num_attention_heads n_head
    num_key_value_heads head_dim kv_channels max_position_embeddings n_positions moe_intermediate_size num_experts
    num_local_experts n_routed_experts num_experts_per_tok kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim
    rms_norm_eps layer_norm_eps layer_norm_epsilon rope_theta rotary_emb_base initializer_range
    decoder_sparse_step sliding_window_pattern"""
)


def _rope_scaling(raw: Mapping[str, Any], longest: int, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scaling with the defaults that transformers fills in; None where rope is not scaled."""
    kind = raw.get("rope_type", raw.get("type")) or "default"
    phi3 = values.get("original_max_position_embeddings")
    if phi3 and kind in ("su", "yarn"):  # Phi-3's older spellings
        kind = "longrope"
    if kind in ("default", "mrope"):
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


def _window_pattern(rule: Window, values: Mapping[str, Any], layers: int) -> list[bool]:
    """Per layer: has it the sliding window, where the file does not list it?"""
    if rule in (Window.ALL, Window.QWEN3_MOE):
        return [True] * layers
    if rule is Window.QWEN2:
        return [i >= values["max_window_layers"] for i in range(layers)]
    if rule is Window.QWEN2_MOE:
        return [i % 2 == 0 and i < values["max_window_layers"] for i in range(layers)]
    every = 2 if rule is Window.ALTERNATE else values["sliding_window_pattern"]
    return [(i + 1) % every != 0 for i in range(layers)]

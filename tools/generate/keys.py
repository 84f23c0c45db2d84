"""Write frameworks/deepspeed/keys.json: every key that the installed DeepSpeed release reads, as a JSON Schema.

`python -m tools generate keys` runs it. Sections that are pydantic models are walked;
for the others, the source is read for the keys that it takes out of its dictionary: none is written down by hand.
A value has no `type` where the source does not tell. A key that DeepSpeed has removed, and refuses, has the schema
false. Beside JSON Schema's words: x-new-name of a deprecated key, x-any-case of names in letters of any case, x-names
of an optimizer's or a schedule's parameters by its type.
"""

from __future__ import annotations

import ast
import dataclasses
import enum
import importlib
import inspect
import json
import pathlib
import types
import typing
from collections.abc import Iterator
from typing import Any

from symconfig.descriptor.architectures.keys import words
from symconfig.frameworks.deepspeed.keys import FILE

Json = dict[str, Any]

_PLAIN = {
    int: "integer",
    float: "number",
    bool: "boolean",
    str: "string",
    pathlib.Path: "string",
    type(None): "null",
    list: "array",
    dict: "object",
    tuple: "array",
}
# Dictionaries that a function of the module takes its keys from: module, variable names -> section.
_READ: tuple[tuple[str, frozenset[str], tuple[str, ...]], ...] = (
    ("runtime.config", frozenset({"param_dict"}), ()),
    ("__init__", frozenset({"config"}), ()),
    ("runtime.activation_checkpointing.config", frozenset({"param_dict"}), ()),
    ("runtime.activation_checkpointing.config", frozenset({"act_chkpt_config_dict"}), ("activation_checkpointing",)),
    ("comm.config", frozenset({"ds_config"}), ()),
    ("monitor.config", frozenset({"param_dict"}), ()),
    ("profiling.config", frozenset({"param_dict"}), ()),
    ("profiling.config", frozenset({"flops_profiler_dict"}), ("flops_profiler",)),
    ("autotuning.config", frozenset({"param_dict"}), ()),
    ("autotuning.config", frozenset({"autotuning_dict"}), ("autotuning",)),
    ("datastates.config", frozenset({"param_dict"}), ()),
    ("runtime.swap_tensor.aio_config", frozenset({"param_dict"}), ()),
    ("runtime.swap_tensor.aio_config", frozenset({"aio_dict"}), ("aio",)),
    ("runtime.model_checkpointing.config", frozenset({"param_dict"}), ()),
    ("runtime.model_checkpointing.config", frozenset({"checkpoint_dict"}), ("checkpoint",)),
    ("runtime.model_checkpointing.config", frozenset({"writer_dict"}), ("checkpoint", "writer")),
    ("runtime.config", frozenset({"checkpoint_params"}), ("checkpoint",)),
    ("runtime.config", frozenset({"par_write_params"}), ("checkpoint", "parallel_write")),
    ("runtime.config", frozenset({"data_types_params"}), ("data_types",)),
    ("runtime.tensor_parallel.config", frozenset({"ds_config"}), ()),
    ("utils.config", frozenset({"param_dict"}), ()),
    ("runtime.precision_config", frozenset({"param_dict"}), ()),
    ("runtime.zero.config", frozenset({"param_dict"}), ()),
)
# Sections that are pydantic models.
_MODELS = {
    "zero_optimization": "runtime.zero.config:DeepSpeedZeroConfig",
    "bf16": "runtime.precision_config:DeepSpeedBF16Config",
    "bfloat16": "runtime.precision_config:DeepSpeedBF16Config",
    "fp16": "runtime.precision_config:DeepSpeedFP16Config",
    "tensor_parallel": "runtime.tensor_parallel.config:TPTrainingConfig",
    "hybrid_engine": "runtime.config:HybridEngineConfig",
    "compile": "compile.config:CompileConfig",
    "comms_logger": "comm.config:CommsLoggerConfig",
    "tensorboard": "monitor.config:TensorBoardConfig",
    "wandb": "monitor.config:WandbConfig",
    "csv_monitor": "monitor.config:CSVConfig",
    "comet": "monitor.config:CometConfig",
}
# Read through another variable or a function's default argument, so that the walk below does not see them.
_HIDDEN = ("communication_data_type", "data_efficiency", "vocabulary_size")
# Whole numbers by meaning, for which the source gives no type.
_INTEGERS = words(
    """
    train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps steps_per_print sequence_parallel_size
    data_parallel_size expert_parallel.autoep_size expert_parallel.expert_tensor_parallel_size
    activation_checkpointing.number_checkpoints
    """
)
# Read from a nested dictionary that the source calls by the same name.
_NESTED = ("allgather_size", "model_info", "writer")


def generate() -> Json:
    """Generate the whole description. Imports DeepSpeed and torch."""
    import deepspeed

    root: Json = {}
    for name, variables, section in _READ:
        node = root
        for step in section:
            node = node.setdefault(step, {"properties": {}}).setdefault("properties", {})
        for key, kind in _keys_read(importlib.import_module(_module(name)), variables).items():
            node.setdefault(key, kind)
    for key, place in _MODELS.items():
        root[key] = _model(_load(place))
    root["timers"] = {"properties": {"throughput": _model(_load("utils.config:DeepSpeedThroughputTimerConfig"))}}
    root["expert_parallel"] = _dataclass(_load("module_inject.auto_ep_config:AutoEPConfig"))
    root["optimizer"] = _optimizer()
    root["scheduler"] = _scheduler()
    root["pipeline"] = {"properties": _literal_keys(_load("runtime.config:get_pipeline_config"))}
    kinds = {"enabled": ["boolean", "null"], "dtype": "string", "lower_precision_safe_modules": "array"}
    root["torch_autocast"] = {"properties": {name: {"type": kind} for name, kind in kinds.items()}}
    for name in _HIDDEN:
        root.setdefault(name, {})
    for path in _INTEGERS:
        *section, key = path.split(".")
        node = root if not section else root[section[0]]["properties"]
        node[key] = {"type": ["integer", "null"]}
    for name in _NESTED:
        root.pop(name, None)
    root |= dict.fromkeys(_load("runtime.config:_REMOVED_TOP_LEVEL_CONFIG_KEYS"), False)
    root["zero_optimization"]["properties"] |= dict.fromkeys(_load("runtime.config:_REMOVED_ZERO_CONFIG_KEYS"), False)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"DeepSpeed {deepspeed.__version__}",
        "properties": _sorted(root),
    }


def _module(name: str) -> str:
    return "deepspeed" if name == "__init__" else f"deepspeed.{name}"


def _load(place: str) -> Any:
    module, name = place.split(":")
    return getattr(importlib.import_module(_module(module)), name)


def _keys_read(module: types.ModuleType, variables: frozenset[str]) -> Json:
    """List the keys that the source takes out of a dictionary with one of these names."""
    keys: Json = {}
    for node in ast.walk(ast.parse(inspect.getsource(module))):
        key, default = _access(node, variables)
        name = _constant(key, module)
        if isinstance(name, str) and name.isidentifier():
            kind = _kind(_constant(default, module))
            keys[name] = keys.get(name) or kind
    return keys


def _access(node: ast.AST, variables: frozenset[str]) -> tuple[ast.expr | None, ast.expr | None]:
    """Return (key, default) of `d.get(k, x)`, `get_scalar_param(d, k, x)`, `d[k]`, `k in d`, `k in d.keys()`."""

    def ours(expression: ast.expr) -> bool:
        if isinstance(expression, ast.Call) and isinstance(expression.func, ast.Attribute):
            expression = expression.func.value if expression.func.attr == "keys" else expression
        return isinstance(expression, ast.Name) and expression.id in variables

    if isinstance(node, ast.Call) and node.args:
        rest = [*node.args[1:], None, None]
        if isinstance(node.func, ast.Attribute) and node.func.attr == "get" and ours(node.func.value):
            return node.args[0], rest[0]
        if isinstance(node.func, ast.Name) and node.func.id.startswith("get_") and ours(node.args[0]):
            return rest[0], rest[1]
    if isinstance(node, ast.Subscript) and ours(node.value):
        return node.slice, None
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.In) and ours(node.comparators[0]):
        return node.left, None
    return None, None


def _constant(expression: ast.expr | None, module: types.ModuleType) -> Any:
    if isinstance(expression, ast.Constant):
        return expression.value
    if isinstance(expression, ast.Name):
        return getattr(module, expression.id, None)
    return None


def _kind(default: Any) -> Json:
    """Return the type of a key from its default; a whole number may be an integer or not."""
    if isinstance(default, bool):
        return {"type": ["boolean", "null"]}
    return {"type": "number"} if isinstance(default, (int, float)) else {}


def _model(cls: Any) -> Json:
    """Describe a pydantic model's fields under their names and aliases."""
    keys: Json = {}
    for name, field in cls.model_fields.items():
        extra = field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}
        value = _described(cls, name)
        if extra.get("deprecated"):
            value |= {"deprecated": True, **({"x-new-name": extra["new_param"]} if extra.get("new_param") else {})}
        for spelling in {name, field.alias or name}:  # both are accepted: populate_by_name
            keys[spelling] = value
    return {
        "properties": keys,
        **({"additionalProperties": False} if cls.model_config.get("extra") == "forbid" else {}),
    }


def _described(cls: Any, name: str) -> Json:
    """Describe a field by its annotation, and by what its model refuses of -1, 0, 1, 2 and of a word."""
    described = _annotation(cls.model_fields[name].annotation)
    if described.get("type") == "array" and _takes(cls, name, "x"):  # a validator makes a list of it
        return {"type": ["array", "string"]}
    number = described.get("type") in ("integer", "number")
    match [value for value in (-1, 0, 1, 2) if number and _takes(cls, name, value)]:
        case [0, *_, last]:
            described |= {"minimum": 0} if last > 1 else {"minimum": 0, "maximum": 1}
        case [1, *_]:
            described |= {"exclusiveMinimum": 0}
    return described


def _takes(cls: Any, name: str, value: Any) -> bool:
    try:
        cls(**{name: value})
    except ValueError:  # pydantic's
        return False
    return True


def _annotation(kind: Any) -> Json:
    if isinstance(kind, type) and hasattr(kind, "model_fields"):
        return _model(kind)
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return {"enum": sorted({member.value for member in kind}, key=str)}
    if kind in _PLAIN:
        return {"type": _PLAIN[kind]}
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return {"enum": list(arguments)}
    if origin in (typing.Union, types.UnionType):
        parts = [_annotation(part) for part in arguments if part is not type(None)]
        if len(parts) == 1:
            word = "enum" if "enum" in parts[0] else "type"
            more = [*parts[0]["enum"], None] if word == "enum" else [parts[0].get("type", "object"), "null"]
            return {**parts[0], word: more}
    return {"type": _PLAIN[origin]} if origin in _PLAIN else {}


def _dataclass(cls: Any) -> Json:
    names = [field.name for field in dataclasses.fields(cls) if not field.name.startswith("_")]
    return {"properties": {name: {} for name in names}}


def _optimizer() -> Json:
    """Describe the optimizers: types, and the parameters that any of the AdamW implementations takes."""
    import torch

    config = importlib.import_module("deepspeed.runtime.config")
    adam = importlib.import_module("deepspeed.ops.adam")
    names: set[str] = {config.ADAM_W_MODE, config.TORCH_ADAM_PARAM}
    for cls in (torch.optim.AdamW, adam.FusedAdam, adam.DeepSpeedCPUAdam):
        names |= set(inspect.signature(cls).parameters)
    names -= {"params", "model_params", "adamw_mode"}
    ours = sorted({"Adam" if name == "adam" else name for name in config.DEEPSPEED_OPTIMIZERS})
    base = torch.optim.Optimizer
    others = [
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    ]
    return {
        "properties": {
            "type": {"x-any-case": ours, "enum": sorted(others)},
            "legacy_fusion": {"type": ["boolean", "null"]},
            "params": {"x-names": {"adam": sorted(names), "adamw": sorted(names)}},
        }
    }


def _scheduler() -> Json:
    """Describe the schedulers: types, and the parameters of each."""
    schedules = importlib.import_module("deepspeed.runtime.lr_schedules")
    keys = {
        name: sorted(set(inspect.signature(getattr(schedules, name)).parameters) - {"optimizer"})
        for name in schedules.VALID_LR_SCHEDULES
    }
    return {"properties": {"type": {"enum": sorted(keys)}, "params": {"x-names": keys}}}


def _literal_keys(function: Any) -> Json:
    """List the keys of the dictionary displays in a function."""
    tree = ast.parse(inspect.getsource(function))
    keys = [
        key.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Dict)
        for key in node.keys
        if isinstance(key, ast.Constant) and isinstance(key.value, str)
    ]
    return {key: {} for key in keys}


def _sorted(value: Any) -> Any:
    return {key: _sorted(value[key]) for key in sorted(value)} if isinstance(value, dict) else value


def main() -> None:
    """Write the file that symconfig reads."""
    FILE.write_text("\n".join(_lines(generate(), "")) + "\n", encoding="utf-8")


def _lines(schema: Json, indent: str) -> Iterator[str]:
    """Yield a section with one line for each key."""
    rest = {key: value for key, value in schema.items() if key != "properties"}
    yield f'{{{json.dumps(rest)[1:-1]}{", " if rest else ""}"properties": {{'
    last = next(reversed(schema["properties"]), None)
    for key, value in schema["properties"].items():
        first, *more = _lines(value, indent + " ") if value and "properties" in value else [json.dumps(value)]
        *body, end = [f"{indent} {json.dumps(key)}: {first}", *more]
        yield from (*body, end + ("" if key == last else ","))
    yield f"{indent}}}}}"

"""Write the defaults of transformers' config classes into symconfig: `python -m tools generate families`.

One line a family: the keys of its class with their defaults, the other spellings of a key, and the rope that an empty
config.json means. A later release of transformers is read by running this again; `tests/descriptor/test_families.py`
then says which families are new.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import math
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, get_args

import transformers
from huggingface_hub.errors import StrictDataclassError
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from symconfig.descriptor.architectures.keys import COMMON_IGNORED, FILE
from symconfig.descriptor.architectures.multimodal import ARCHITECTURES as INNER
from symconfig.descriptor.architectures.multimodal import MULTIMODAL
from symconfig.descriptor.architectures.registry import reasons

NO_DECODER = reasons("no_decoder")
AROUND = ("fuyu", "got_ocr2", "moss_transcribe_diarize")  # registered for causal modelling, with a tower before text
_TYPES = {"int", "float", "bool", "str", "None", "list", "dict"}
_SECTION = "text_config"
_READS_HEAD_DIM = re.compile(r'config\.head_dim|config, "head_dim"')
# Hidden channels that heads do not share out evenly are refused; elsewhere each head has the whole number below.
_WHOLE_HEADS = re.compile(
    r"(hidden_size|n_state|embed_dim) % (self|config)\.n(um_attention_heads|_head|um_heads)"
    r"|head_dim \* (self\.)?(num_heads|num_attention_heads)\)? != self"
)
_BASE = {field.name: field.default for field in dataclasses.fields(transformers.PreTrainedConfig)}


@cache
def families() -> list[str]:
    """Return the model types of decoders that transformers has a causal model for, and of their text sections."""
    kinds = [kind for kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES if kind not in (*NO_DECODER, *AROUND)]
    inner = [sub.model_type for kind in kinds for sub in _sections(kind).values() if sub.model_type not in NO_DECODER]
    return sorted({*kinds, *(kind for kind in inner if kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)})


def _sections(kind: str) -> Mapping[str, Any]:
    return {name: sub for name, sub in CONFIG_MAPPING[kind].sub_configs.items() if hasattr(sub, "model_type")}


def row(kind: str) -> dict[str, Any]:
    """Return what the class of a family fills in, and how transformers computes its model."""
    made = CONFIG_MAPPING[kind]
    found = keys(kind)
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind]
    found["class"] = names if isinstance(names, str) else names[0]
    source = _modules(made)
    if source and "ALL_ATTENTION_FUNCTIONS" not in source:
        found["own_attention"] = True  # that no attention_interface replaces
    if _WHOLE_HEADS.search(source + Path(inspect.getfile(made)).read_text(encoding="utf-8")):
        found["whole_heads"] = True
    if not getattr(transformers, found["class"])._supports_sdpa:
        found["plain_attention"] = True  # only: torch's fused kernel is refused
    text = next(([name, sub.model_type] for name, sub in _sections(kind).items() if "text" in name), None)
    if text:
        found["text"] = text
    return found


def keys(kind: str) -> dict[str, Any]:
    """Return the keys of a class with their defaults, types and other spellings."""
    made = CONFIG_MAPPING[kind]
    defaults = _defaults(made)
    if "qk_rope_head_dim" in defaults:
        defaults.pop("head_dim", None)  # of rope's part, or of none
    elif _READS_HEAD_DIM.search(_modules(made)) and not hasattr(made, "head_dim"):  # nor is it computed there
        defaults.setdefault("head_dim", None)  # read by the modules where the class does not name it
    found: dict[str, Any] = {"defaults": defaults, "aliases": dict(made.attribute_map)}
    fields = {field.name: field for field in dataclasses.fields(made)}
    said = {key: _type(fields[key].type, value) for key, value in defaults.items() if key in fields}
    found["types"] = {key: text for key, text in said.items() if text}
    rope = getattr(made(), "rope_parameters", None) if "rope_parameters" in defaults else None
    if rope:
        found["rope"] = rope
    return found


def _defaults(made: Any) -> dict[str, Any]:
    """Return the keys of a class with their defaults."""
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(made):
        if field.name in COMMON_IGNORED or field.name in made.sub_configs:
            continue
        if field.name in _BASE and _BASE[field.name] == field.default:
            continue
        value = field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if not callable(value) and value is not dataclasses.MISSING and _plain(value):
            defaults[field.name] = value
    return defaults


def _modules(made: type) -> str:
    """Return the source of a family's modules."""
    path = Path(inspect.getfile(made))
    path = path.with_name(path.name.replace("configuration_", "modeling_"))
    return path.read_text(encoding="utf-8") if path.exists() else ""


def _type(annotation: Any, default: Any) -> str:
    """Return a key's type where its default does not say it: int|None, list[int]|None; empty: it does, or is rope's."""
    text = annotation.__name__ if isinstance(annotation, type) and not get_args(annotation) else str(annotation)
    words = text.replace(" ", "").split("|")
    same = {type(default).__name__, *(["int"] if isinstance(default, float) else [])}
    if set(words) <= same or not {word.partition("[")[0] for word in words} <= _TYPES:
        return ""
    return "|".join(words)


def around() -> dict[str, tuple[str, str]]:
    """Return multimodal models whose language model is one of the families: its section, and its type by default."""
    found = {}
    for kind in CONFIG_MAPPING:
        try:
            made = CONFIG_MAPPING[kind]
            inner = getattr(made(), _SECTION, None) if _SECTION in made.sub_configs else None
        except (ImportError, KeyError, ValueError, StrictDataclassError):  # not installed, or of no default
            continue
        if inner is not None and inner.model_type in families() and kind not in families():
            found[kind] = (_SECTION, inner.model_type)
    return found


def towers() -> dict[str, Any]:
    """Return the defaults of the vision towers that symconfig reads, by the type that their section names."""
    sections = [CONFIG_MAPPING[kind]().vision_config for kind in MULTIMODAL]
    return {section.model_type: _defaults(type(section)) for section in sections}


def _plain(value: Any) -> bool:
    """Whether JSON can say it."""
    items = value if isinstance(value, list | tuple) else [value]
    return all(not isinstance(item, float) or math.isfinite(item) for item in items)


def main() -> None:
    """Write the file that symconfig reads."""
    sections = {
        "around": around(),
        "towers": towers(),
        "inner": {kind: keys(kind) for kind in INNER},
        "families": {kind: row(kind) for kind in families()},
    }
    text = f'{{"version": "{transformers.__version__}"'
    for name, rows in sections.items():
        lines = (f"{json.dumps(kind)}: {json.dumps(one, sort_keys=True)}" for kind, one in sorted(rows.items()))
        text += f',\n"{name}": {{\n' + ",\n".join(lines) + "\n}"
    text += "}\n"
    Path(FILE).write_text(text, encoding="utf-8")
    print(f"{len(sections['families'])} families of transformers {transformers.__version__}")

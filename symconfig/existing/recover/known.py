"""Models that scripts call by a name: the zoo's, those of `model_zoo/known.json`, and what huggingface_hub has here."""

from __future__ import annotations

import json
import re
from functools import cache
from typing import Any

from symconfig.descriptor import hub
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.existing.launch.text import Place
from symconfig.existing.recover.run import Assumed
from symconfig.resources import data_dir

_FILE = "known.json"
# How weights are stored, by the end of a name, and bytes of each; "thinking" is how they were tuned.
_STORED = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5, "awq": 0.5, "gptq": 0.5, "mcore": 2.0}
_ENDS = re.compile(rf"[-_]({'|'.join((*_STORED, 'thinking'))})(?=$|[-_/])", re.IGNORECASE)


def by_name(given: str, place: Place | None) -> tuple[ModelDescriptor, list[Assumed]] | None:
    """Return the model that a name or a folder is called after; None where it is not known."""
    plain = _ENDS.sub("", given)
    for name, known in hub.of_zoo():
        if hub.same(plain, _ENDS.sub("", known)):
            return load_model(name), [] if given == known else [_called(known, given, place)]
    for known in models():
        if hub.same(plain, known):
            model, without = model_of(known)
            assumed = [_called(known, given, place)]
            if without:
                assumed.append(Assumed("images", "none", "the tower before the model is left out", place))
            return model, assumed
    if hub.is_id(given) and hub.cached(given) is not None:
        return load_model(given), []
    return None


def weight_bytes(given: str) -> float:
    """Return the bytes of a weight as a name says that they are stored; 16 bits where it says nothing."""
    sizes = (_STORED.get(end.lower()) for end in _ENDS.findall(given))
    return next((size for size in sizes if size is not None), _STORED["bf16"])


def _called(known: str, given: str, place: Place | None) -> Assumed:
    return Assumed("model", known, f"of the name {given}; its weights were not looked at", place)


@cache
def models() -> dict[str, dict[str, Any]]:
    """Return what is known of models beside the zoo, by their ids on the hub."""
    text = (data_dir("model_zoo") / _FILE).read_text(encoding="utf-8")
    known: dict[str, dict[str, Any]] = json.loads(text)["models"]
    return known


@cache
def model_of(name: str) -> tuple[ModelDescriptor, bool]:
    """Return a model of the file, under its own name, and whether a tower in front of it is left out."""
    entry = models()[name]
    if "config" in entry:
        model = import_config({**entry["config"], "torch_dtype": "bfloat16"}, _FILE, name)
    else:
        like = entry["like"]
        model = model_of(like)[0] if like in models() else load_model(like)
    return hub.named(model, name), bool(entry.get("vision"))

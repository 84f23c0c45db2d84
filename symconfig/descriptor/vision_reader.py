"""Reads the vision tower of a multimodal `config.json`, by the tables of `architectures/multimodal.py`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.architectures import class_defaults
from symconfig.descriptor.architectures.multimodal import (
    BESIDE_TEXT,
    MULTIMODAL,
    NAMES,
    TOWER_IGNORED,
    Multimodal,
    Tower,
)
from symconfig.descriptor.architectures.projectors import Unfit
from symconfig.descriptor.document import Document, shorten
from symconfig.descriptor.vision import Vision
from symconfig.errors import Problem

SECTION = "vision_config"
_SQUARE = ("image_size", "patch_size", "temporal_patch_size")  # may be lists of one value for each side


@dataclass(slots=True)
class VisionReader:
    """A reader of one file's tower. Problems and notes are collected; what is not understood as a whole is left out."""

    data: Mapping[str, Any]
    document: Document
    problems: list[Problem] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def read(self, hidden_size: int) -> Vision | None:
        """Return the tower in front of a language model of this hidden size; None with a note, or with problems."""
        kind = str(self.data.get("model_type"))
        tables = self._tables(kind)
        if tables is None:
            return None
        multimodal, tower, classed = tables
        section = _one_spelling(self.data[SECTION], tower)
        values = self._values(section, {key: classed[key] for key in classed if key in tower.reads}, (SECTION,))
        around = self._values(self.data, multimodal.defaults, ())
        self._unknown(section, tower, multimodal, values)
        if self.problems:
            return None
        self.notes += [text for (key, value), text in multimodal.noted.items() if around[key] == value]
        return self._tower(kind, values, around, tower, multimodal, hidden_size)

    def _tables(self, kind: str) -> tuple[Multimodal, Tower, Mapping[str, Any]] | None:
        multimodal, section = MULTIMODAL.get(kind), self.data.get(SECTION)
        if multimodal is None or section is None:
            why = f"towers of {shorten(kind)} are not known" if multimodal is None else f"the file has no {SECTION}"
            self.notes.append(f"only the text model is described, and the vision tower is left out: {why}")
            return None
        if not isinstance(section, Mapping):
            self._problem("wrong value", (SECTION,), got=section, need="an object")
            return None
        of_tower = str(section.get("model_type") or multimodal.towers[0])
        if of_tower not in multimodal.towers:
            why = f"a tower of the kind {shorten(of_tower)} is not known in front of {kind}"
            self.notes.append(f"only the text model is described, and the vision tower is left out: {why}")
            return None
        return multimodal, multimodal.tower, class_defaults.tower(multimodal.towers[0])

    def _problem(
        self, what: str, path: tuple[str, ...], *, got: object = None, need: str | None = None, hint: str | None = None
    ) -> None:
        shown = None if got is None else shorten(got if isinstance(got, str) else repr(got))
        self.problems.append(self.document.problem(what, path, got=shown, need=need, hint=hint))

    def _values(self, section: Mapping[str, Any], defaults: Mapping[str, Any], at: tuple[str, ...]) -> dict[str, Any]:
        """Return values of the keys that have a default, each of its default's type."""
        result = {}
        for key, default in defaults.items():
            value = section.get(key)
            value = default if value is None else value
            if key in _SQUARE and isinstance(value, list) and value and value.count(value[0]) == len(value):
                value = value[0]
            default = default[0] if key in _SQUARE and isinstance(default, list) else default
            need = _need(value, default)
            if need is not None:
                self._problem("wrong value", (*at, key), got=value, need=need)
            result[key] = value
        return result

    def _unknown(
        self, section: Mapping[str, Any], tower: Tower, multimodal: Multimodal, read: Mapping[str, Any]
    ) -> None:
        """Refuse keys that may change the structure, and values that are not understood."""
        for path, given, known, only in (
            ((SECTION,), section, {*tower.reads, *tower.ignored, *TOWER_IGNORED}, tower.only),
            ((), self.data, {*BESIDE_TEXT, *multimodal.defaults, *_text_keys(self.data)}, multimodal.only),
        ):
            values = {**{key: read[key] for key in only if key in tower.reads}, **given}
            for key, value in values.items():
                value = value[0] if key in _SQUARE and isinstance(value, list) and value else value
                if key in only:
                    if value not in only[key]:
                        need = " or ".join(map(repr, only[key]))
                        self._problem("not supported for this tower", (*path, key), got=value, need=need)
                elif key not in known and value is not None and value is not False:
                    what = "this key is not known and may change the vision tower"
                    hint = "remove it if it has no effect on the model"
                    self._problem(what, (*path, key), got=value, hint=hint)

    def _tower(
        self,
        kind: str,
        values: dict[str, Any],
        around: dict[str, Any],
        tower: Tower,
        multimodal: Multimodal,
        hidden_size: int,
    ) -> Vision | None:
        fields = {"model_type": kind, **dict(_named(values, tower)), **tower.fields}
        try:
            fields |= {**tower.derived(values), **multimodal.projector(values, around, hidden_size)}
            vision = Vision.model_validate(fields, strict=False)
        except Unfit as unfit:
            path = (unfit.key,) if unfit.key in around else (SECTION, unfit.key)
            self._problem(str(unfit), path, got=values.get(unfit.key, around.get(unfit.key)))
            return None
        except ValidationError as error:
            for item in error.errors():
                self._problem(item["msg"].removeprefix("Value error, "), (SECTION, *map(str, item["loc"])))
            return None
        for what in vision.against(hidden_size):
            self._problem(what, (SECTION,))
        return vision


def _one_spelling(section: Mapping[str, Any], tower: Tower) -> dict[str, Any]:
    result = {str(key): value for key, value in section.items()}
    for other, key in tower.same_as.items():
        if other in result:
            result.setdefault(key, result.pop(other))
    return result


def _named(values: Mapping[str, Any], tower: Tower) -> Iterator[tuple[str, Any]]:
    """Yield the descriptor's fields; a key whose name is empty is only derived from."""
    for key, value in values.items():
        name = tower.names.get(key, NAMES.get(key, key))
        if name in Vision.model_fields:
            yield name, value


def _text_keys(data: Mapping[str, Any]) -> frozenset[str]:
    """Return the keys that belong to the language model where it has no section of its own (Qwen2.5-VL's files)."""
    return frozenset() if isinstance(data.get("text_config"), Mapping) else frozenset(map(str, data))


def _need(value: Any, default: Any) -> str | None:
    """Say of what type a value has to be, where it is not; and positive."""
    if isinstance(default, bool):
        return None if isinstance(value, bool) else "true or false"
    if isinstance(default, str):
        return None if isinstance(value, str) else "text"
    if isinstance(default, list):
        whole = isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)
        return None if whole else "a list of whole numbers"
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(default, float):
        return None if number and value > 0 else "a number above 0"
    if not isinstance(value, int) or isinstance(value, bool) or abs(value) >= 2**40:
        return "a whole number"
    return None if value > 0 or default < 0 else "a whole number above 0"

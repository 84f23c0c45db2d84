"""Reads the vision tower of a multimodal `config.json`, by the tables of `architectures/multimodal.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.architectures import class_defaults
from symconfig.descriptor.architectures.multimodal import BESIDE_TEXT, MULTIMODAL, NAMES, TOWER_IGNORED, Unfit
from symconfig.descriptor.config_reader import fits, spoken
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
        kind, section = str(self.data.get("model_type")), self.data.get(SECTION)
        around = MULTIMODAL.get(kind)
        if around is None or section is None:
            why = f"towers of {shorten(kind)} are not known" if around is None else f"the file has no {SECTION}"
            self._left_out(why)
            return None
        if not isinstance(section, Mapping):
            self._problem("wrong value", (SECTION,), got=section, need="an object")
            return None
        if (of_tower := str(section.get("model_type") or around.towers[0])) not in around.towers:
            self._left_out(f"a tower of the kind {shorten(of_tower)} is not known in front of {kind}")
            return None
        tower, classed = around.tower, class_defaults.tower(around.towers[0])
        spelled = {str(key): value for key, value in section.items()}
        for other in tower.same_as.keys() & spelled.keys():
            spelled.setdefault(tower.same_as[other], spelled.pop(other))
        values = self._values(spelled, {key: classed[key] for key in classed if key in tower.reads}, (SECTION,))
        outside = self._values(self.data, around.defaults, ())
        self._unknown({**{key: values[key] for key in tower.only if key in tower.reads}, **spelled}, tower.only,
                      {*tower.reads, *tower.ignored, *TOWER_IGNORED}, (SECTION,))  # fmt: skip
        # The keys of a language model without a section of its own (Qwen2.5-VL's files) are its reader's.
        text = () if isinstance(self.data.get("text_config"), Mapping) else map(str, self.data)
        self._unknown(self.data, around.only, {*BESIDE_TEXT, *around.defaults, *text}, ())
        if self.problems:
            return None
        self.notes += [text for (key, value), text in around.noted.items() if outside[key] == value]
        named = {tower.names.get(key, NAMES.get(key, key)): value for key, value in values.items()}
        fields = {name: value for name, value in named.items() if name in Vision.model_fields}
        try:
            fields |= {"model_type": kind, **tower.fields, **tower.derived(values)}
            vision = Vision.model_validate(fields | around.projector(values, outside, hidden_size), strict=False)
        except Unfit as unfit:
            path = (unfit.key,) if unfit.key in outside else (SECTION, unfit.key)
            self._problem(str(unfit), path, got=values.get(unfit.key, outside.get(unfit.key)))
            return None
        except ValidationError as error:
            for item in error.errors():
                self._problem(item["msg"].removeprefix("Value error, "), (SECTION, *map(str, item["loc"])))
            return None
        for what in vision.against(hidden_size):
            self._problem(what, (SECTION,))
        return vision

    def _left_out(self, why: str) -> None:
        self.notes.append(f"only the text model is described, and the vision tower is left out: {why}")

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
            need = _need(value, default[0] if key in _SQUARE and isinstance(default, list) else default)
            if need is not None:
                self._problem("wrong value", (*at, key), got=value, need=need)
            result[key] = value
        return result

    def _unknown(
        self,
        values: Mapping[str, Any],
        only: Mapping[str, tuple[Any, ...]],
        known: Collection[str],
        at: tuple[str, ...],
    ) -> None:
        """Refuse keys that may change the structure, and values that are not understood."""
        for key, value in values.items():
            value = value[0] if key in _SQUARE and isinstance(value, list) and value else value
            if key in only:
                if value not in only[key]:
                    need = " or ".join(map(repr, only[key]))
                    self._problem("not supported for this tower", (*at, key), got=value, need=need)
            elif key not in known and value is not None and value is not False:
                what = "this key is not known and may change the vision tower"
                self._problem(what, (*at, key), got=value, hint="remove it if it has no effect on the model")


def _need(value: Any, default: Any) -> str | None:
    """Say of what type a value has to be, where it is not; and positive."""
    types = "list[int]" if isinstance(default, list) else type(default).__name__
    if not fits(value, types):
        return spoken(types)
    number = types in ("int", "float")
    return f"{spoken(types)} above 0" if number and (value <= 0 <= default or abs(value) >= 2**40) else None

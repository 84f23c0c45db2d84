"""Reads the vision tower of a multimodal `config.json`, by the tables of `architectures/multimodal.py`."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.architectures.architecture import Architecture, Reading
from symconfig.descriptor.architectures.keys import fits, spoken, tower_defaults
from symconfig.descriptor.architectures.multimodal import BESIDE_TEXT, MULTIMODAL, NAMES, TOWER_IGNORED, Unfit
from symconfig.descriptor.document import Document, shorten
from symconfig.descriptor.vision import Vision

SECTION = "vision_config"
_SQUARE = ("image_size", "patch_size", "temporal_patch_size")  # may be lists of one value for each side


class VisionReader(Reading):
    """A reader of one file's vision tower; it collects problems and notes.

    A tower that is not supported is left out as a whole, with a note.
    """

    def __init__(self, data: Mapping[str, Any], document: Document) -> None:
        super().__init__(data, Architecture(), document, ())

    def read(self, hidden_size: int) -> Vision | None:
        """Return the vision tower of the file's vision_config, for a language model of this hidden size.

        None if the tower is left out, with the reason in `notes`: unknown families and kinds of towers, or no such
        section. None also if there are `problems`, which are recorded: a section that is no object, unknown keys,
        unsupported or wrong values. A tower whose projector is not as wide as hidden_size is returned, with a problem.
        """
        kind, section = str(self.data.get("model_type")), self.data.get(SECTION)
        around = MULTIMODAL.get(kind)
        if around is None or section is None:
            why = f"towers of {shorten(kind)} are not known" if around is None else f"the file has no {SECTION}"
            self._left_out(why)
            return None
        if not isinstance(section, Mapping):
            self.problem("wrong value", SECTION, got=section, need="an object")
            return None
        if (of_tower := str(section.get("model_type") or around.towers[0])) not in around.towers:
            self._left_out(f"a tower of the kind {shorten(of_tower)} is not known in front of {kind}")
            return None
        tower, classed = around.tower, tower_defaults(around.towers[0])
        inside = Reading(section, tower, self.document, (SECTION,))
        inside.problems = self.problems
        for other in tower.same_as.keys() & inside.data.keys():
            inside.data.setdefault(tower.same_as[other], inside.data.pop(other))
        _read_values(inside, {key: classed[key] for key in classed if key in tower.reads})
        _read_values(self, around.defaults)
        values = {key: inside.values[key] for key in tower.only if key in tower.reads} | inside.data
        _unknown(inside, values, tower.only, {*tower.reads, *tower.ignored, *TOWER_IGNORED})
        # The keys of a language model without a section of its own (Qwen2.5-VL's files) are its reader's.
        text = () if isinstance(self.data.get("text_config"), Mapping) else self.data
        _unknown(self, self.data, around.only, {*BESIDE_TEXT, *around.defaults, *text})
        if self.problems:
            return None
        self.notes += [text for (key, value), text in around.noted.items() if self.values[key] == value]
        named = {(*tower.names.get(key, ()), NAMES.get(key, key))[0]: value for key, value in inside.values.items()}
        inside.fields = {name: value for name, value in named.items() if name in Vision.model_fields}
        inside.fields |= {"model_type": kind, **tower.constants}
        for rule in tower.rules:
            rule.read(inside)
        try:
            projector = around.projector(inside.values, self.values, hidden_size)
            vision = Vision.model_validate(inside.fields | projector, strict=False)
        except Unfit as unfit:
            where = self if unfit.key in self.values else inside
            where.problem(str(unfit), unfit.key, got=inside.values.get(unfit.key, self.values.get(unfit.key)))
            return None
        except ValidationError as error:
            wrong = [(item["msg"].removeprefix("Value error, "), map(str, item["loc"])) for item in error.errors()]
            self.problems += [self.document.problem(what, (SECTION, *where)) for what, where in wrong]
            return None
        self.problems += [self.document.problem(what, (SECTION,)) for what in vision.against(hidden_size)]
        return vision

    def _left_out(self, why: str) -> None:
        self.notes.append(f"only the text model is described, and the vision tower is left out: {why}")


def _read_values(reading: Reading, defaults: Mapping[str, Any]) -> None:
    """Set `reading.values` of every key in `defaults` from the file; null and absent ones get the default.

    A list of equal numbers counts as one number for sizes of a square. A value of another type than its default, or out
    of range (`_need`), is recorded as a problem, and is set all the same.
    """
    for key, default in defaults.items():
        value = reading.data.get(key)
        value = default if value is None else value
        if key in _SQUARE and isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        need = _need(value, default[0] if key in _SQUARE and isinstance(default, list) else default)
        if need is not None:
            reading.problem("wrong value", key, got=value, need=need)
        reading.values[key] = value


def _unknown(
    reading: Reading, values: Mapping[str, Any], only: Mapping[str, tuple[Any, ...]], known: Collection[str]
) -> None:
    """Append a problem for each key of `values` not known, and for each value that `only` does not list for its key.

    Keys in neither `only` nor `known` pass if they are null or false. Of lists for sizes of a square the first counts.
    """
    for key, value in values.items():
        value = value[0] if key in _SQUARE and isinstance(value, list) and value else value
        if key in only:
            if value not in only[key]:
                need = " or ".join(map(repr, only[key]))
                reading.problem("not supported for this tower", key, got=value, need=need)
        elif key not in known and value is not None and value is not False:
            what, hint = (
                "this key is not known and may change the vision tower",
                "remove it if it has no effect on the model",
            )
            place = reading.path(key)
            reading.problems.append(reading.document.problem(what, place, got=shorten(value), hint=hint))


def _need(value: Any, default: Any) -> str | None:
    """Return what is needed, as text, if a value has not its default's type or is out of range; else None.

    A list must be one of integers. Numbers must be above 0, unless the default is negative, and below 2^40 in
    magnitude.
    """
    types = "list[int]" if isinstance(default, list) else type(default).__name__
    if not fits(value, types):
        return spoken(types)
    number = types in ("int", "float")
    return f"{spoken(types)} above 0" if number and (value <= 0 <= default or abs(value) >= 2**40) else None

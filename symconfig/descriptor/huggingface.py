"""A Hugging Face `config.json`, with its vision tower, to a model descriptor. What is not understood is an error."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.architectures.architecture import Architecture, Reading
from symconfig.descriptor.architectures.keys import (
    COMMON_IGNORED,
    IDLE,
    class_of,
    families,
    fits,
    idle_unless_read,
    spoken,
    tower_defaults,
)
from symconfig.descriptor.architectures.multimodal import BESIDE_TEXT, MULTIMODAL, NAMES, TOWER_IGNORED, Unfit
from symconfig.descriptor.architectures.registry import architectures, refused
from symconfig.descriptor.config_reader import DTYPE_KEYS, ConfigReader
from symconfig.descriptor.document import MAX_PROBLEMS, Document, KeyPath, Place, shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import problems as pydantic_problems
from symconfig.descriptor.vision import Vision
from symconfig.errors import InputError, Problem, nearest
from symconfig.format import nested

SECTION = "vision_config"
_ROPE = ("rope_parameters", "rope_scaling")
_IN_ROPE = {"rope_theta", "partial_rotary_factor", "rotary_emb_base", "rotary_pct", "rope_local_base_freq"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What became of the keys of a `config.json`.

    family: its model_type. filled: keys that are absent, with their values from the class's defaults. left_out: keys
    that do not describe the model, by the reason.
    """

    family: str
    filled: Mapping[str, Any]
    left_out: Mapping[str, tuple[str, ...]]

    def sentences(self) -> Iterator[str]:
        """Yield a sentence on the keys that were filled in, if any, and one for each reason to leave keys out."""
        if self.filled:
            filled = ", ".join(f"{key} {shorten(json.dumps(value), 40)}" for key, value in sorted(self.filled.items()))
            owner = class_of(self.family) or f"the code of {self.family}"
            yield f"not in the file, and filled in as {owner} does: {filled}"
        for why, keys in self.left_out.items():
            yield f"left out ({why}): {', '.join(keys)}"


def account(
    data: Mapping[str, Any], values: Mapping[str, Any], architecture: Architecture, outside: tuple[str, ...] = ()
) -> Account:
    """Return what became of a file's keys: filled in from the class's defaults, or left out, by reason.

    Filled in are keys that the file lacks or has as null, if the table reads them and their value is not None; rope's
    keys do not count where the file has a rope section. Left out are keys without effect; model_type is in neither.

    Args:
        data: The file's keys.
        values: The values as they were read.
        architecture: The family's table.
        outside: Keys around the text model's section, which are left out.
    """
    known = {
        *(key for key in data if data[key] is not None),
        *(_IN_ROPE if any(isinstance(data.get(section), Mapping) for section in _ROPE) else ()),
    }
    filled = {key: values[key] for key in architecture.defaults if key not in known and values.get(key) is not None}
    reasons = {**IDLE, "no effect on a model of this family that is trained": frozenset(architecture.ignored)}
    idle = {why: tuple(key for key in data if key in keys and key != "model_type") for why, keys in reasons.items()}
    for key in (key for key in data if key not in architecture.defaults or not architecture.is_read(key)):
        if why := idle_unless_read(key):
            idle[why] = (*idle.get(why, ()), key)
    return Account(
        family=data["model_type"],
        filled={key: value for key, value in filled.items() if architecture.is_read(key)},
        left_out={why: keys for why, keys in {**idle, "not of the text model": outside}.items() if keys},
    )


_TIED = "tie_word_embeddings"
# What of a multimodal file is said of its text model, too.
_INHERITED = (*DTYPE_KEYS, _TIED, "quantization_config")
_TIES = (
    "the file does not say tie_word_embeddings, and the class around the text model ties head and embedding: they are "
    "counted once, as where training starts from nothing; a checkpoint that holds two is loaded as two, which "
    "tie_word_embeddings: false counts"
)
_LIST = "a model_type that docs/reference/models.md lists"


def import_config(data: Mapping[str, Any], file: str, name: str | None) -> ModelDescriptor:
    """Return the model descriptor of a parsed `config.json`, as `imported` does, without the account of its keys."""
    return imported(data, file, name)[0]


def imported(
    data: Mapping[str, Any], file: str, name: str | None, document: Document | None = None, like: str | None = None
) -> tuple[ModelDescriptor, Account]:
    """Return the descriptor of a parsed `config.json`, and the account of its keys.

    Of a multimodal model the text model is described, with its vision tower where that is known. Parts that are left
    out are listed in `notes`. huggingface_id is set where `_name_or_path` has the form of an id. Raises InputError with
    at most MAX_PROBLEMS problems in the order of their places: no object, an unknown family, key or value, numbers that
    are not finite, or fields that do not fit together.

    Args:
        data: The file's content.
        file: Its path, for messages, the source and the name.
        name: The model's name; None: that of `_name_or_path`, else of the folder.
        document: The places of keys, for line numbers in messages; None: without them.
        like: The family to read the file as, in place of its model_type; a note says so.
    """
    document = document or Document(data, file)
    if not isinstance(data, Mapping):
        raise InputError(document.problem("a config.json holds one object", got=shorten(data)))
    notes: list[str] = []
    if like is not None:
        notes.append(_read_as(like, data.get("model_type")))
        data = {**data, "model_type": like}
    architecture = _architecture(data, document)
    prefix: KeyPath = ()
    original = data.get("_name_or_path")
    outside: tuple[str, ...] = ()
    around = {key: value for key, value in data.items() if key in COMMON_IGNORED}
    tower, whole = VisionReader(data, document), data
    if architecture.text_of is not None:
        read = {*COMMON_IGNORED, *_INHERITED, *BESIDE_TEXT, SECTION, architecture.text_of[0]}
        outside = tuple(key for key in data if key not in read)
        data, prefix = _text_section(data, architecture.text_of, document)
        outside = outside if prefix else ()
        ties = prefix and data.get(_TIED) and _TIED not in document.data
        architecture = _architecture(data, document)
        if ties and not architecture.defaults.get(_TIED):
            notes.append(_TIES)
    reader = ConfigReader(data, architecture, document, prefix)
    fields = reader.read()
    if data is not whole and "hidden_size" in fields:
        fields["vision"] = tower.read(fields["hidden_size"])
        notes += tower.notes
    if together := [*reader.problems, *tower.problems, *_not_finite(document, prefix, architecture)]:
        problems = sorted(together, key=lambda problem: (problem.line or 0, problem.column or 0))
        raise InputError(problems[:MAX_PROBLEMS])
    fields["name"] = name or _name(original, file)
    fields["source"] = f"imported from {file}"
    if isinstance(original, str) and original.count("/") == 1 and not original.startswith(("/", ".")):
        fields["huggingface_id"] = original
    fields["notes"] = [*notes, *reader.notes]
    return _descriptor(fields, reader), account(around | reader.data, reader.values, architecture, outside)


def _not_finite(document: Document, prefix: KeyPath, architecture: Architecture) -> Iterator[Problem]:
    """Yield a problem for each number that is not finite, except in keys that the architecture ignores."""
    for path, value in _leaves(document.data, ()):
        idle = path[: len(prefix)] == prefix and path[len(prefix)] in architecture.ignored
        if isinstance(value, float) and not math.isfinite(value) and not idle:
            yield document.problem("not a finite number", path, got=shorten(value))


def _leaves(data: Any, path: KeyPath) -> Iterator[tuple[KeyPath, Any]]:
    """Yield (path, value) of each value of parsed JSON that is no object or list, depth first.

    path: that of `data`, with which all others begin.
    """
    inner = data.items() if isinstance(data, Mapping) else enumerate(data) if isinstance(data, list) else None
    if inner is None:
        yield path, data
        return
    for key, value in inner:
        yield from _leaves(value, (*path, key))


def _read_as(like: str, kind: object) -> str:
    """Return the note that a file is read as family `like`. Raises InputError if there is no such family."""
    known = architectures()
    if like not in known:
        hint = nearest(like, known)
        raise InputError("there is no such family", field="--like", got=shorten(like), need=_LIST, hint=hint)
    other = f" and not of {shorten(kind)}" if isinstance(kind, str) and kind != like else ""
    return f"read as a model of the family {like}{other}, as the user said; no code beside its weights was run"


def _architecture(data: Mapping[str, Any], document: Document) -> Architecture:
    """Return the table of the file's model_type.

    Raises InputError if it is missing, no text, refused with a reason, or unknown; if Transformers does not have it
    either, the hint is to read the file with `--like`. Code named by auto_map is never run.
    """
    if "model_type" not in data:
        raise InputError(document.problem("model_type is missing, so the architecture is not known", need=_LIST))
    kind = data["model_type"]
    if not isinstance(kind, str):
        raise InputError(document.problem("wrong value", ("model_type",), got=shorten(kind), need=_LIST))
    if kind in (known_kinds := architectures()):
        return known_kinds[kind]
    if (why := refused().get(kind)) is not None:
        what = f"models of this family cannot be described: {why}"
        raise InputError(document.problem(what, ("model_type",), got=shorten(kind)))
    what = "this architecture is not known, and is not guessed"
    hint: str | None = (
        f"symconfig import {shorten(PurePath(document.file).name)} --like FAMILY, if it is built as one of these"
    )
    if kind in families():
        what, hint = "transformers has this architecture, and its file is not read yet", None
    elif data.get("auto_map"):
        what += "; the code beside its weights (auto_map) is never run"
    raise InputError(document.problem(what, ("model_type",), got=shorten(kind), need=_LIST, hint=hint))


def _text_section(
    data: Mapping[str, Any], where: tuple[str, str], document: Document
) -> tuple[dict[str, Any], KeyPath]:
    """Return the keys of a multimodal file's language model, and the path of its section.

    The file's dtype, quantization and the like go in where the section has none; tied embeddings are the file's, else
    as the multimodal class has them. If the section is absent and the family may be flat, the keys are the file's
    without those of the tower, and the path is (). Otherwise raises InputError for a missing section and one that is no
    object.

    Args:
        data: The whole file.
        where: The section's key, and the text model's type.
        document: The file, for messages.
    """
    (section, kind), around = where, MULTIMODAL.get(data["model_type"])
    text = data.get(section)
    if text is None and around is not None and around.flat:
        known = {SECTION, *BESIDE_TEXT} - {*COMMON_IGNORED, *_INHERITED}
        return {**{key: data[key] for key in data if key not in known}, "model_type": kind}, ()
    if not isinstance(text, dict):
        raise InputError(document.problem("this section is missing or not an object", (section,)))
    inherited = {key: data[key] for key in _INHERITED if key in data}
    language = {"model_type": kind, **inherited, **text}
    if around is not None or _TIED in data:  # the head is the outer class's
        language[_TIED] = data.get(
            _TIED, around is not None and (around.tied or (around.ties and text.get(_TIED, False)))
        )
    return language, (section,)


def _name(original: object, file: str) -> str:
    """Return the last part of `_name_or_path`, else a config.json's folder, else the file's stem, else "imported".

    Parts that are empty or dots alone are skipped; at most 200 characters are returned.
    """
    path = PurePath(file)
    of_file = path.parent.name if path.name == "config.json" else path.stem
    candidates = [PurePath(original).name if isinstance(original, str) else "", of_file, path.stem]
    return next((text[:200] for text in candidates if text.strip(".")), "imported")


def _descriptor(fields: dict[str, Any], reader: ConfigReader) -> ModelDescriptor:
    """Return the descriptor made from the fields by dotted name, as `section.field`.

    Raises InputError for fields that the descriptor refuses, at the places of the keys that they came from.
    """
    data = nested({"schema": "symconfig.model/1", **fields})
    keys: dict[KeyPath, Place] = {}
    for path in fields:
        place = reader.document.place((*reader.prefix, reader.key_of.get(path, path)))
        if place is not None:
            keys[tuple(path.split("."))] = place
    try:
        return ModelDescriptor.model_validate(data, strict=False)
    except ValidationError as error:
        document = Document(data, reader.document.file, keys, keys)
        raise InputError(pydantic_problems(error, document, ModelDescriptor)) from None


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
        # The keys of a language model without a section of its own (Qwen2.5-VL's files) are its reader's.
        text = () if isinstance(self.data.get("text_config"), Mapping) else self.data
        of, known = ("this tower", "vision tower"), {*tower.reads, *tower.ignored, *TOWER_IGNORED}
        inside.check_keys(values, tower.only, known, *of)
        self.check_keys(self.data, around.only, {*BESIDE_TEXT, *around.defaults, *text}, *of)
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

    A list of equal numbers counts as one number for sizes of a square. A value of another type than its default (a
    list: of whole numbers), a number that is not above 0 (unless the default is negative), and one of 2^40 or more are
    recorded as problems, and are set all the same.
    """
    for key, default in defaults.items():
        value = reading.data.get(key)
        value = default if value is None else value
        if key in _SQUARE and isinstance(value, list) and value and value.count(value[0]) == len(value):
            value = value[0]
        usual = default[0] if key in _SQUARE and isinstance(default, list) else default
        types = "list[int]" if isinstance(usual, list) else type(usual).__name__
        if not fits(value, types):
            reading.problem("wrong value", key, got=value, need=spoken(types))
        elif types in ("int", "float") and (value <= 0 <= usual or abs(value) >= 2**40):
            reading.problem("wrong value", key, got=value, need=f"{spoken(types)} above 0")
        reading.values[key] = value

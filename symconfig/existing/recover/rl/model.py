"""The model that a script of reinforcement learning names by a path or an id of the hub."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.deepspeed_model import unnamed, with_adapter
from symconfig.existing.recover.known import by_name
from symconfig.existing.recover.run import Assumed, Described, Supplied
from symconfig.existing.recover.zoo import zoo_match


def described(reading: Reading, setting: Setting | None, supplied: Supplied) -> Described:
    """Return the model. A folder that is not known may still have a known name. Raises InputError where nothing does
    say it."""
    assumed: list[Assumed] = []
    word = setting.values[-1] if setting is not None and setting.values else None
    if supplied.model is not None:
        model = supplied.model
    else:
        place = None if setting is None else setting.place
        named = by_name(word.text, place) if word is not None and word.text else None
        if named is None:
            raise InputError(_unknown(reading, setting))
        model, assumed = named
    return without_images(Described(model, zoo_match(model), tuple(assumed)))


def without_images(described: Described) -> Described:
    """Return a model without the tower that reads images."""
    if described.model.vision is None:
        return described
    model = described.model.model_copy(update={"vision": None})
    left = Assumed("images", "none", "prompts with images are not predicted: the tower is left out")
    return Described(model, zoo_match(model), (*described.assumed, left))


def adapted(model: Described, reading: Reading, fields: Mapping[str, object]) -> Described:
    """Return the model with an adapter of these fields. Raises InputError where it has no such adapter."""
    problems: list[Problem] = []
    made = with_adapter(model.model, fields, problems)
    if made is None:
        raise InputError([replace(problem, file=reading.file) for problem in problems])
    return replace(model, model=made)


def _unknown(reading: Reading, setting: Setting | None) -> Problem:
    if setting is None or not setting.values:
        return unnamed(None, Problem("", reading.file))
    place, word = setting.place, setting.values[-1]
    where = Problem("", place.file, place.line, place.column, setting.spelled)
    if word.unknown and not word.text.rpartition("/")[2]:
        return Problem(
            f"its value {word.unknown}", place.file, place.line, place.column, setting.spelled, hint="--model M"
        )
    return unnamed(word.text, where)

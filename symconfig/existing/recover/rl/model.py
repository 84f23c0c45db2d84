"""The model that a script of reinforcement learning names by a path or an id of the hub."""

from __future__ import annotations

from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.deepspeed_model import unnamed
from symconfig.existing.recover.known import by_name
from symconfig.existing.recover.run import Assumed, Described
from symconfig.existing.recover.supplied import Supplied
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
    if model.vision is not None:
        model = model.model_copy(update={"vision": None})
        assumed.append(Assumed("images", "none", "prompts with images are not predicted: the tower is left out"))
    if model.adapter is not None:
        raise InputError(Problem("adapters under reinforcement learning are not predicted", field="model"))
    return Described(model, zoo_match(model), tuple(assumed))


def _unknown(reading: Reading, setting: Setting | None) -> Problem:
    if setting is None or not setting.values:
        return unnamed(None, Problem("", reading.file))
    place, word = setting.place, setting.values[-1]
    where = Problem("", place.file, place.line, place.column, setting.spelled)
    if word.unknown:
        return Problem(
            f"its value {word.unknown}", place.file, place.line, place.column, setting.spelled, hint="--model M"
        )
    return unnamed(word.text, where)

"""slime's command line: Megatron-LM's options with slime's own, given to train.py through `ray job submit`.

Source: slime/utils/arguments.py and slime/backends/megatron_utils/arguments.py of THUDM/slime, 21 August 2026.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from posixpath import basename

from symconfig.descriptor.architectures.keys import words
from symconfig.existing.launch.reading import Hides, Reading, Setting, Word, World
from symconfig.existing.launch.world import stated_numbers
from symconfig.formats.keys import unset
from symconfig.formats.slime import SLIME

# Options by any two of which a program is slime's train.py.
_OWN = words(
    """
    --actor-num-nodes --actor-num-gpus-per-node --rollout-batch-size --n-samples-per-prompt
    --rollout-num-gpus-per-engine --rollout-num-gpus --num-rollout
    """
)
_PROGRAMS = re.compile(r"train(_async)?\.py")
_ARRAY = re.compile(r"\"?\$\{\w*ARGS(\[[@*]\])?\}\"?")  # one of its groups of options
_MODEL = "MODEL_ARGS"
_ENVIRONMENT = "--runtime-env-json"
_GPUS = unset(SLIME.keys, "actor_num_nodes", "actor_num_gpus_per_node", "rollout_num_gpus")  # by default


def applies(reading: Reading) -> bool:
    """Return whether slime's train.py is started: by its name and at least two of slime's own options."""
    own = _OWN & {setting.name for setting in reading.settings}
    return bool(_PROGRAMS.fullmatch(basename(reading.path))) and len(own) > 1


def started(reading: Reading) -> Reading:
    """Return the reading with slime's GPUs, and the variables of --runtime-env-json added to `environment`.

    If Ray is among the launcher's words, single quotes are removed from values. Unread `${..._ARGS[@]}` among the
    options are marked as assumed to be empty, as bash does not export arrays.
    """
    unread = tuple(
        replace(item, hides=Hides.NOTHING, assumed=True)
        if item.options and item.hides is Hides.OPTIONS and _ARRAY.fullmatch(item.what)
        else item
        for item in reading.unread
    )
    settings = reading.settings
    if any(basename(word.text) == "ray" for word in reading.launcher):
        settings = tuple(replace(each, values=tuple(map(_of_job, each.values))) for each in settings)
    return replace(
        reading,
        settings=settings,
        world=_world(settings),
        environment={**reading.environment, **_environment(reading.launcher)},
        unread=unread,
    )


def _of_job(word: Word) -> Word:
    """Return a word without the single quotes that a second shell of Ray's job removes (job/cli.py, list2cmdline)."""
    if word.unknown or word.text.count("'") % 2 or any(letter.isspace() for letter in word.text):
        return word
    return replace(word, pieces=tuple(replace(piece, text=piece.text.replace("'", "")) for piece in word.pieces))


def model_hidden(reading: Reading) -> bool:
    """Return whether the model's options are in a file that was not read."""
    return any(item.assumed and _MODEL in item.what for item in reading.unread)


def _world(settings: Sequence[Setting]) -> World:
    """Return the actor's GPUs (default: 1 node of 8), plus --rollout-num-gpus unless --colocate is set."""
    numbers, known = stated_numbers(settings, _GPUS)
    nodes, each, served = numbers.values()
    alone = not any(setting.name == "--colocate" for setting in settings)
    return known if known.dark else replace(known, gpus=nodes * each + served * alone, gpus_per_node=each)


def _environment(launcher: Sequence[Word]) -> dict[str, Word]:
    """Return `env_vars` of the JSON in the launcher's word `--runtime-env-json=...`; {} if there is none."""
    given = next((word for word in launcher if word.text.startswith(_ENVIRONMENT)), None)
    if given is None:
        return {}
    try:
        values = json.loads(given.text.partition("=")[2]).get("env_vars", {})
    except (ValueError, AttributeError):
        return {}
    return {str(name): Word.of(str(value), given.place) for name, value in dict(values).items()}

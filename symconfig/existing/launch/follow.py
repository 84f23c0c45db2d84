"""Files that a command names and that say how it trains: DeepSpeed's JSON, Accelerate's, hydra's, a model's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.detect import read_document
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, slime, tuners, verl
from symconfig.existing.launch.dialects.override import overrides_apart
from symconfig.existing.launch.reading import Hides, Reading, Setting, Unread, Word, World
from symconfig.existing.launch.sections import (
    ARGUMENTS,
    FileLookup,
    last_given,
    merged_world,
    of_nemo_rl,
    of_verl,
    overrides,
    recipe,
    tree_of,
    unread_setting,
    with_named_file,
    with_texts,
    with_unread,
)
from symconfig.existing.launch.text import Text
from symconfig.existing.launch.trees import parse_yaml
from symconfig.existing.launch.world import hostfile_world, launcher_options

_DEEPSPEED = words(
    """
    --deepspeed-config --deepspeed --ds-config --deepspeed-config-file --ds-config-path --dist-config.config-file
    """
)
_MODEL = words(
    """
    --model-config --model-name-or-path --model-path --model --model-dir --config-name-or-path --base-model
    """
)
_SHELLS = ("bash", "sh", "zsh", "dash", "ksh")  # what they run is read with the script that starts it


def followed(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the contents of the files that it names, and overrides as settings of their own.

    verl's and NeMo-RL's are merged by their rules; else hostfile, arguments, Accelerate's, FSDP's, DeepSpeed's, the
    model's and the overrides' file are read. Words without an option are dropped, and noted in `unread` if they name no
    file; so are files that cannot be read.
    """
    by_verl = verl.applies(reading)
    keyed = by_verl or nemo_rl.applies(reading)
    reading = replace(reading, settings=tuple(overrides_apart(reading.settings, any_section=keyed)))
    reading = tuners.with_command(reading)
    if by_verl:
        reading = of_verl(reading, lookup)
    elif nemo_rl.applies(reading):
        reading = of_nemo_rl(reading, lookup)
    else:
        for program in (slime, openrlhf):
            reading = program.started(reading) if program.applies(reading) else reading
        for step in (_hosts, _arguments, _accelerate, _fsdp, _deepspeed, _model, recipe, overrides):
            reading = step(reading, lookup)
    named = tuple(setting for setting in reading.settings if setting.name)
    loose = (word for setting in reading.settings if not setting.name for word in setting.values)
    files = {text.file for text in reading.texts}
    called = reading.program is not None and Path(reading.program.text).name in _SHELLS
    why = "is a script that is not there" if called else "is an argument that belongs to no option"
    idle = (
        Unread(word.place, word.text, why, Hides.OPTIONS if called else Hides.NOTHING)
        for word in loose
        if not (word.unknown or any(file.endswith(word.text) for file in files))
    )
    return with_unread(replace(reading, settings=named), *idle)


def _hosts(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the GPUs of the deepspeed launcher's hostfile as `world`; unchanged without --hostfile.

    A hostfile that cannot be read is noted in `unread`.
    """
    spoken = {each.key: each.value for each in launcher_options(reading.launcher) if each.launcher == "deepspeed"}
    word = spoken.get("hostfile", spoken.get("H"))
    if word is None:
        return reading
    try:
        text = None if word.unknown else lookup.text(word.text)
    except InputError:
        text = None
    listed = None if text is None else hostfile_world(text.data.decode("utf-8", "replace"), spoken)
    if text is None or listed is None:
        why = "names hosts that are not read, so that it does not say how many GPUs there are"
        return with_unread(reading, Unread(word.place, word.text, why, Hides.NOTHING))
    return replace(reading, world=replace(listed, words=(word,)), texts=with_texts(reading, text))


def _accelerate(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the file of Accelerate's launcher (--config_file) or of a tuner's --accelerate-config.

    A preset's name stands for its contents. The file's counts of GPUs are used where the launcher gives no total. A
    file that cannot be read is noted. Without either option a tuner's program without a launcher gets its GPUs from the
    environment.
    """
    known = tuners.program(reading)
    stated = next((each.value for each in launcher_options(reading.launcher) if each.key == "config_file"), None)
    setting = None if stated is None else Setting("--config_file", "--config_file", (stated,), stated.place)
    if setting is None and known is not None:
        setting = last_given(reading, ("--accelerate-config",))
    if setting is None:
        alone = known is not None and reading.world.gpus is None and not reading.launcher
        return replace(reading, world=tuners.started(reading)) if alone else reading
    tree = tree_of(setting, lookup)
    preset = tuners.ACCELERATE_PRESETS.get(setting.values[-1].text)
    if isinstance(tree, Unread) and preset is not None:
        tree = parse_yaml(
            Text(f"the {setting.values[-1].text} of {known.tuner.name if known else ''}", preset.encode())
        )
    if isinstance(tree, Unread) or not isinstance(tree.data, dict):
        why = "is a configuration of Accelerate, which decides processes, precision and ZeRO, and is not read"
        return with_unread(reading, Unread(setting.place, setting.spelled, why))
    counts = {name: n for name in ("num_processes", "num_machines") if type(n := tree.get(name)) is int}
    words = tuple(Word.of(str(n), tree.spans[(name,)].value, literal=True) for name, n in counts.items())
    gpus, nodes = (max(0, counts.get(name, 0)) or None for name in ("num_processes", "num_machines"))
    filed = World(gpus, nodes, gpus // nodes if gpus and nodes else None, words)
    world = merged_world(filed, reading.world) if reading.world.gpus is None else reading.world
    texts = reading.texts if preset is not None else with_texts(reading, tree.text)
    return replace(reading, accelerate=tree, texts=texts, world=world)


def _arguments(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the settings of the first YAML file among words without an option, and of --config.

    The file's settings come first, so that the command line's win. A file that cannot be read is noted.
    """
    loose = [word for setting in reading.settings if not setting.name for word in setting.values]
    named = last_given(reading, ARGUMENTS) if tuners.program(reading) is not None else None
    for word in (*loose, *(named.values[-1:] if named is not None else ())):
        if word.text.endswith((".yaml", ".yml")) and not word.unknown:
            tree = tree_of(Setting("", word.text, (word,), word.place), lookup)
            if isinstance(tree, Unread):
                return with_unread(reading, tree)
            filed = read_document(tree, lookup.variables)
            if filed is not None:
                return with_named_file(reading, filed, (*filed.settings, *reading.settings))
    return reading


def _fsdp(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the JSON file of --fsdp-config as `fsdp`; unchanged without one, or for inline JSON.

    A file that cannot be read is noted in `unread`.
    """
    setting = last_given(reading, ("--fsdp-config",))
    if setting is None or setting.text.startswith("{"):
        return reading
    tree = tree_of(setting, lookup)
    if isinstance(tree, Unread) or not isinstance(tree.data, dict):
        return with_unread(reading, unread_setting(setting, "is no JSON of FSDP that can be read"))
    return replace(reading, fsdp=tree, texts=with_texts(reading, tree.text))


def _deepspeed(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with the DeepSpeed JSON that an option, or else Accelerate's file, names.

    A file that cannot be read is noted in `unread`, unless its name is a preset's.
    """
    setting, filed = last_given(reading, _DEEPSPEED), reading.accelerate
    path = ("deepspeed_config", "deepspeed_config_file")
    if setting is None and filed is not None and isinstance(name := filed.get(*path), str):
        place = filed.spans[path].value
        setting = Setting(path[1], path[1], (Word.of(name, place),), place)
    if setting is None or reading.deepspeed is not None:
        return reading
    tree = tree_of(setting, lookup)
    if isinstance(tree, Unread):
        own = setting.text in tuners.DEEPSPEED_PRESETS and tuners.program(reading) is not None
        return reading if own else with_unread(reading, tree)
    return replace(reading, deepspeed=tree, texts=with_texts(reading, tree.text))


def _model(reading: Reading, lookup: FileLookup) -> Reading:
    """Return the reading with `model_config`, the path of the model's .json file or its folder's config.json.

    Unchanged if no option names a model, or there is no such file.
    """
    setting = last_given(reading, _MODEL)
    if setting is None or setting.values[-1].unknown:
        return reading
    path = lookup.path(setting.values[-1].text)
    if path is not None and path.is_dir():
        path = path / "config.json"
    if path is None or not path.is_file() or path.suffix != ".json":
        return reading
    return replace(reading, model_config=str(path))

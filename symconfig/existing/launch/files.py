"""Files of a configuration: where they are looked for, of what kind they are, and the settings of YAML files.

The kind is told by what a file holds, and by its name only where that leaves it open.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from symconfig.descriptor.architectures.keys import words
from symconfig.errors import InputError
from symconfig.existing.launch.dialects import nemo_rl
from symconfig.existing.launch.dialects.override import Entry, entries, interpolated
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import JSON_ALONE, Reading, Setting, Tree, Unread, World
from symconfig.existing.launch.text import Text, open_text
from symconfig.existing.launch.trees import parse_json, parse_yaml
from symconfig.formats.tuners import TUNERS
from symconfig.resources import may_read

Syntax = Literal["bash", "json", "yaml"]
Dialect = Literal["overrides", "trainer", "nemo-rl"]
# Of a flat file of arguments of Transformers' Trainer, or of a program around it: two or more.
_TRAINER_KEYS = words(
    """
    per_device_train_batch_size model_name_or_path gradient_accumulation_steps dataset_name learning_rate
    num_generations max_length lora_rank template stage
    """
) | frozenset(name for tuner in TUNERS for name in tuner.own)


def dialect_of(data: Any) -> Dialect | None:
    """Return the dialect of a YAML file's data; None if none applies.

    "nemo-rl" by NeMo-RL's sections; "trainer" by two or more arguments of the Trainer or a program around it, without a
    section `model`; "overrides" by a section such as `model` or `train`, as Megatron-Bridge and NeMo 2 have.
    """
    if not isinstance(data, dict):
        return None
    sections = {key for key, value in data.items() if isinstance(value, dict)}
    if nemo_rl.is_own(data):
        return nemo_rl.FORMAT
    if sum(key in data for key in _TRAINER_KEYS) > 1 and not sections & {"model"}:
        return "trainer"
    return "overrides" if sections & {"model", "train", "trainer", "ddp", "mixed_precision"} else None


def read_document(tree: Tree, variables: Mapping[str, str]) -> Reading | None:
    """Return the reading of a YAML file by its dialect; None if it is in no known one.

    variables: the environment, for references. The Trainer's key a.b gives `--a.b`, a null one nothing. NeMo-RL's has
    no settings yet: they are added when the files that it inherits are followed.
    """
    match dialect_of(tree.data):
        case "overrides":
            return read_sections(tree, variables, ())
        case "trainer":  # a key a.b gives `--a.b`, a null one none
            by_key = interpolated(by_path(entries(tree)), variables).values()
            named = ((f"--{'.'.join(entry.path)}", entry) for entry in by_key if entry.value is not None)
            settings = tuple(Setting(name, entry.spelled, entry.words, entry.place) for name, entry in named)
            return Reading(JSON_ALONE, (tree.text,), settings, tree=tree, unread=tree.unread)
        case "nemo-rl":  # what it inherits is followed
            return Reading(nemo_rl.FORMAT, (tree.text,), (), tree=tree, unread=tree.unread)
    return None


def read_sections(tree: Tree | None, variables: Mapping[str, str], overrides: Sequence[Entry]) -> Reading:
    """Return the reading in the format "overrides" of a file's entries, with the overrides merged over them.

    Settings are Megatron-LM's options; keys without one are noted in `unread`. `environment` is from `env_vars`,
    `world` from trainer.num_nodes and trainer.devices. tree: None for overrides without a file. variables: for
    references.
    """
    filed = entries(tree) if tree is not None else ()
    by_key = interpolated(by_path((*filed, *overrides)), variables)
    environment = {path[-1]: entry.words[0] for path, entry in by_key.items() if path[0] == "env_vars" and entry.words}
    settings, unread = translated(by_key)
    texts = (tree.text,) if tree is not None else ()
    stated = [by_key.get(("trainer", key)) for key in ("num_nodes", "devices")]
    nodes, each = (e.value if e is not None and type(e.value) is int and e.value > 0 else None for e in stated)
    counted = tuple(word for entry in stated if entry is not None for word in entry.words)
    return Reading(
        "overrides",
        texts,
        settings,
        tree=tree,
        environment=environment,
        world=World(nodes * each if nodes and each else None, nodes, each, counted),
        unread=(*(tree.unread if tree is not None else ()), *unread),
    )


_SCRIPTS = (".sh", ".bash", ".slurm", ".sbatch", ".pbs", ".zsh", ".ksh")
_SHEBANG = re.compile(rb"#!.*\b(ba|z|k|da)?sh\b")


def syntax_of(text: Text) -> Syntax:
    """Return "bash" (a shell's shebang or suffix), "yaml" (suffix), or "json" (suffix or a first `{`).

    Any other file is "yaml" if it is one of a known dialect, else "bash".
    """
    suffix = Path(text.file).suffix.lower()
    head = text.data.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _SHEBANG.match(head) or suffix in _SCRIPTS:
        return "bash"
    if suffix in (".yaml", ".yml"):
        return "yaml"
    if head[:1] == b"{" or suffix in (".json", ".hjson", ".jsonc"):
        return "json"
    try:
        return "yaml" if dialect_of(parse_yaml(text).data) else "bash"
    except InputError:
        return "bash"


def parse(text: Text, syntax: Syntax) -> Tree:
    """Return the tree of a data file; all but "json" is read as YAML. Raises InputError."""
    return parse_json(text) if syntax == "json" else parse_yaml(text)


_MOST_LEVELS = 4  # from a script up to the folder in which it is started


@dataclass(frozen=True, slots=True)
class FileLookup:
    """Where the files that a configuration names are looked for.

    folder: of the configuration; None for a line of arguments. variables: the environment. virtual: files that a script
    itself writes.
    """

    folder: Path | None
    variables: Mapping[str, str]
    virtual: Mapping[str, Text] = field(default_factory=dict)

    def text(self, name: str, *below: str) -> Text | None:
        """Return the file of this name, from `virtual` or the folder of `base`; None if it is in neither."""
        if name in self.virtual:
            return self.virtual[name]
        base = self.base(name, *below)
        return None if base is None else open_text(base / name, root=base)

    def path(self, name: str) -> Path | None:
        """Return the existing path of this name; None if there is none."""
        base = self.base(name)
        return None if base is None else base / name

    def base(self, name: str, *below: str) -> Path | None:
        """Return the first folder in which the name exists and may be read; None if in none.

        Order: the configuration's folder, those `below` it, the current one, for a name with a folder also four parents
        of the first; without a configuration's folder only the current one.
        """
        folder = self.folder
        bases = [Path()] if folder is None else [folder, *(folder / one for one in below), Path()]
        if folder is not None and len(Path(name).parts) > 1:
            bases += folder.resolve().parents[:_MOST_LEVELS]
        try:
            return next((base for base in bases if may_read(base / name) and (base / name).exists()), None)
        except (OSError, ValueError):  # a name that no file system has
            return None


def tree_of(setting: Setting, lookup: FileLookup, *below: str) -> Tree | Unread:
    """Return the data of the file that the setting's last value names.

    An Unread, which is recorded nowhere yet, if the value is unknown, or the file is absent or cannot be read. below:
    further folders to look in.
    """
    word = setting.values[-1]
    if word.unknown and word.text not in lookup.virtual:  # a script's own file may have the job's number in its name
        return setting.unread(f"its value {word.unknown}")
    try:
        text = lookup.text(word.text, *below)
        if text is None:
            preset = "names no file: it is a preset of the program itself, which is not known here"
            return setting.unread("names a file that is not there" if re.search(r"[./]", word.text) else preset)
        return parse(text, syntax_of(text))
    except InputError as error:
        return setting.unread(f"names a file that cannot be read: {error.problems[0]}".rstrip("."))


def mapping_of(setting: Setting, lookup: FileLookup, *below: str) -> Tree | Unread:
    """Return `tree_of` the setting; an Unread, too, if the file holds no keys at its top level."""
    tree = tree_of(setting, lookup, *below)
    if isinstance(tree, Unread) or isinstance(tree.data, dict):
        return tree
    return setting.unread("names a file that holds no keys at its top level")

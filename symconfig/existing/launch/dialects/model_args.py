"""Megatron-LM's functional tests: MODEL_ARGS and ENV_VARS of a YAML file.

The runner is tests/functional_tests/shell_test_utils/_run_training.sh: `true` is a switch, a text in brackets is
several words, any other text is one, and the environment is put in by envsubst. Up to core_v0.12 a blank parts words
without brackets, too; from then to core_v0.16 two backslashes stood before what bash would have read a meaning into.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from symconfig.descriptor.document import KeyPath
from symconfig.existing.launch.dialects.entry import Entry, entries, word
from symconfig.existing.launch.dialects.interpolation import expanded
from symconfig.existing.launch.dialects.options import table_with
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Format, Hides, Reading, Setting, Tree, Unread, Word
from symconfig.existing.launch.text import Place

SECTION = "MODEL_ARGS"
_QUOTED = re.compile(r"\\\\(.)")


def read_model_args(tree: Tree, variables: Mapping[str, str]) -> Reading:
    """Return the options of MODEL_ARGS, with the variables of ENV_VARS and those that are given put in."""
    own = tree.get("ENV_VARS")
    environment = {
        name: word(tree, ("ENV_VARS", name))
        for name, value in (own or {}).items()
        if value is not None and not isinstance(value, dict | list)
    }
    top = tree.spans[()].value
    given = {name: Word.of(value, top) for name, value in variables.items()}
    known = {**given, **environment}
    settings: list[Setting] = []
    overrides: list[Entry] = []
    for entry in entries(tree, (SECTION,)):
        name = next((part for part in reversed(entry.path) if part.startswith("-")), None)
        if name is not None:
            settings += _setting(name, expanded(entry, known))
        else:
            overrides.append(expanded(entry, known))
    dotted = by_path(replace(entry, path=tuple(".".join(entry.path).split("."))) for entry in overrides)
    translation, unread = translated(dotted)
    dialect: Format = "model args yaml" if settings or not translation else "overrides"  # of NeMo 2's own names
    return Reading(
        dialect,
        (tree.text,),
        (*settings, *translation),
        tree=tree,
        environment=environment,
        unread=(*tree.unread, *unread, *_later_runs(tree)),
    )


def _setting(name: str, entry: Entry) -> Iterator[Setting]:
    if entry.value is False or (entry.value is None and not entry.unknown):
        return
    switch = entry.value is True or entry.value == "true"
    words = () if switch else entry.words
    if len(words) == 1 and not words[0].unknown:
        words = tuple(_spoken(name, words[0]))
    yield Setting(name, entry.spelled, words, entry.place)


def _spoken(name: str, whole: Word) -> Iterator[Word]:
    """Yield the words that the text of one value stands for."""
    text = whole.text
    if text[:1] == "[" and text[-1:] == "]":
        items = text[1:-1].replace(",", " ").split()
    elif " " in text and _takes_several(name):
        items = text.split()
    elif "\\\\" in text:
        items = [_QUOTED.sub(r"\1", text)]
    else:
        yield whole
        return
    for item in items:
        yield Word.of(item, whole.place)


def _takes_several(name: str) -> bool:
    table = table_with(name.lstrip("-").replace("-", "_"))
    flag = table.flags.get(name) if table is not None else None
    return flag is not None and flag.nargs in ("+", "*")


def _later_runs(tree: Tree) -> Iterator[Unread]:
    for key in tree.data:
        if key.startswith(SECTION + "_"):
            path: KeyPath = (key,)
            place: Place = tree.spans[path].key or tree.spans[path].value
            yield Unread(place, key, f"is of another run of the same test; {SECTION} is read", Hides.NOTHING)

"""Ways to make one option of a configuration say something else, whatever its format."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

from symconfig.descriptor.document import KeyPath
from symconfig.existing.adapt import trees, words
from symconfig.existing.adapt.draft import Draft, Meaning
from symconfig.existing.adapt.goal import COMPANIONS, Wish, having, neighbours
from symconfig.existing.adapt.outcome import Change
from symconfig.existing.adapt.runs import alike, together
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Edit
from symconfig.existing.recover.arguments import plain
from symconfig.existing.recover.namespace import Namespace
from symconfig.formats.megatron_run import DECIDED, FAMILIES
from symconfig.frameworks.megatron.flags import Value, parsed
from symconfig.render.files import sh

# Destinations by the names of Megatron-Bridge and NeMo 2, where a new key has to have them.
BRIDGE = {
    "num_virtual_stages_per_pipeline_rank": "virtual_pipeline_model_parallel_size",
    "decoder_first_pipeline_num_layers": "num_layers_in_first_pipeline_stage",
    "decoder_last_pipeline_num_layers": "num_layers_in_last_pipeline_stage",
}
AT_TOP = (
    "account_for_embedding_in_pipeline_split",
    "account_for_loss_in_pipeline_split",
    "use_distributed_optimizer",
    "num_layers_per_virtual_pipeline_stage",
)
UNREAD = ("num_virtual_stages_per_pipeline_rank",)
EVERY = (*FAMILIES, *COMPANIONS)
MOST_ANCHORS = 6  # of places to put a new option, beyond which no other is likelier to do


def granted(draft: Draft, names: Namespace, wish: Wish, wanted: Namespace | None = None) -> Draft | None:
    """Return the draft with this wish in it, and nothing else changed; None: no way to write it is known to be
    right. wanted: a variable that the value comes through may change other options, too, to what these say.
    """
    setting = having(names, wish.dest)
    if setting is None:
        return _added(draft, names, wish)
    if wish.values is None or not setting.values:
        if draft.reading.format in ("overrides", "megatron yaml") and not setting.spelled.startswith("-"):
            return _off(draft, names, setting, wish)
        return _without(draft, setting)
    if not wish.values:
        return None
    by_variable = None if wanted is None else _by_variable(draft, setting, wish, wanted)
    return by_variable or _changed(draft, names, setting, wish)


def _by_variable(draft: Draft, setting: Setting, wish: Wish, wanted: Namespace) -> Draft | None:
    """Return the draft with another value of the variable that the option's value comes through, where all that this
    changes is then as wanted."""
    pieces = [piece for word in setting.values for piece in word.pieces if piece.text]
    if len(pieces) != 1 or not pieces[0].variables or wish.values is None or draft.reading.runs:
        return None
    way = next(words.changed(setting.values[0], wish.values[0], draft.texts), ())
    if [edit.place for edit in way] != [pieces[0].place]:
        return None
    before = draft.meaning
    options = Counter((each.name, tuple(each.texts)) for each in wanted.settings)

    def right(after: Meaning) -> bool:
        gained, lost = (Counter(a.settings) - Counter(b.settings) for a, b in ((after, before), (before, after)))
        return (
            replace(after, settings=before.settings) == before
            and bool(gained)
            and not gained - options
            and not any(each in options for each in lost)
            and all(_is_decided(name, wanted) for name, _ in lost)
        )

    return draft.tried([way], right)


def _is_decided(name: str, names: Namespace) -> bool:
    return name in names.table.flags and names.table.flags[name].dest in DECIDED


def change(wish: Wish, setting: Setting | None, before: Namespace, after: Namespace, why: str = "") -> Change:
    """Return a change. What was there lies where it was before anything was changed; what is new, where it is now."""
    if setting is None:
        new = after.setting(wish.dest)
        assert new is not None, "an option that was added has been read"
        return Change(wish.option, None, wish.now, new.place, why)
    gone = wish.values is None or not setting.values
    first = having(before, wish.dest) or setting
    return Change(setting.name, setting.text, None if gone else wish.now, first.place, why)


def _changed(draft: Draft, names: Namespace, setting: Setting, wish: Wish) -> Draft | None:
    values = wish.values or ()
    goal = draft.meaning.setting(draft.index(setting), values)
    tree = draft.reading.tree_at(setting.values[0].place)
    if tree is not None:
        path = trees.path_at(tree, setting.values[0].place)
        ways = trees.changed(tree, path, _data(names, wish)) if path is not None else iter(())
    elif len(values) == len(setting.values) == 1:
        ways = together([one_value(draft, each, values[0]) for each in alike(draft.reading, setting)])
    else:
        ways = together([_all_values(draft, each, values) for each in alike(draft.reading, setting)])
    return draft.tried(ways, lambda meaning: meaning == goal)


def one_value(draft: Draft, setting: Setting, value: str) -> Iterator[tuple[Edit, ...]]:
    yield from words.changed(setting.values[0], value, draft.texts)
    if setting.joined or not setting.spelled.startswith("-"):
        yield from _behind_equals(setting, sh(value), draft)


def _all_values(draft: Draft, setting: Setting, values: Sequence[str]) -> Iterator[tuple[Edit, ...]]:
    """Yield all values anew, where they stand one after the other."""
    first, last = setting.values[0].place, setting.values[-1].place
    if first.file == last.file and first.file in draft.texts and first.start <= last.end:
        text = draft.texts[first.file]
        for spelled in dict.fromkeys((" ".join(map(sh, values)), " ".join(values))):
            yield (Edit(text.place(first.start, last.end), spelled),)


def _without(draft: Draft, setting: Setting) -> Draft | None:
    goal = draft.meaning.setting(draft.index(setting), None)
    tree = draft.reading.tree_at(setting.place)
    if tree is None:
        ways = together([words.removed(each, draft.texts) for each in alike(draft.reading, setting)])
    else:
        path = trees.path_at(tree, setting.place)
        ways = trees.removed(tree, path) if path else iter(())
    return draft.tried(ways, lambda meaning: meaning == goal)


def _off(draft: Draft, names: Namespace, setting: Setting, wish: Wish) -> Draft | None:
    """Set a switch off where it stands: without a word the recipe would decide, and Megatron-LM's own YAML has no
    defaults behind it.
    """
    value = None if names.table.flags[setting.name].kind == "store" else False
    tree = draft.reading.tree_at(setting.place)
    if tree is not None:
        path = trees.path_at(tree, setting.place)
        ways = trees.changed(tree, path, value) if path else iter(())
    else:
        spelled = trees.spelled(value, "yaml")
        ways = together([_behind_equals(each, spelled, draft) for each in alike(draft.reading, setting)])
    mine = {plain(name) for name, flag in names.table.flags.items() if flag.dest == wish.dest}
    goal = draft.meaning.less(mine)
    return draft.tried(ways, lambda meaning: meaning != draft.meaning and meaning.less(mine) == goal)


def _behind_equals(setting: Setting, spelled: str, draft: Draft) -> Iterator[tuple[Edit, ...]]:
    """Yield `key=true` -> `key=false`, `key=$TP` -> `key=4`."""
    text = draft.texts.get(setting.place.file)
    source = text.at(setting.place) if text is not None else ""
    head, equals, tail = source.partition("=")
    if text is not None and equals:
        end = setting.place.end - (tail[-1:] in ("'", '"') and head[:1] == tail[-1:])
        place = text.place(setting.place.start + len((head + equals).encode()), end)
        yield (Edit(place, spelled),)


def _added(draft: Draft, names: Namespace, wish: Wish) -> Draft | None:
    before, values = draft.meaning, wish.values or ()

    def right(after: Meaning) -> bool:
        return before.gained(wish.option, values, after)

    ways = chain.from_iterable(
        together([_after(draft, names, each, wish) for each in alike(draft.reading, anchor)])
        for anchor in _anchors(draft, names, wish)
    )
    return draft.tried(ways, right)


def _after(draft: Draft, names: Namespace, anchor: Setting, wish: Wish) -> Iterator[tuple[Edit, ...]]:
    """Yield a new option behind another one, as that is spelled: an option, an override, a key of YAML."""
    tree = draft.reading.tree_at(anchor.place)
    path = trees.path_at(tree, anchor.place) if tree is not None else None
    if tree is not None and path:
        key = wish.option if str(path[-1]).startswith("-") else _key(draft, wish.dest)
        yield from (
            way
            for there in tree.spans
            if there[-1:] == (key,)  # it is there, and says no
            for way in trees.changed(tree, there, _data(names, wish))
        )
        if _belongs(draft, path, wish):
            yield from trees.inserted(tree, path[:-1], key, _data(names, wish), str(path[-1]))
    elif tree is not None:
        return
    elif anchor.spelled.startswith("-"):
        yield from words.added(anchor, (wish.option, *(wish.values or ())), draft.texts)
    else:
        section = anchor.spelled.rpartition(".")[0]
        name = f"{section}.{_key(draft, wish.dest)}" if section else _key(draft, wish.dest)
        yield from words.added(anchor, (f"{name}={trees.spelled(_data(names, wish), 'yaml')}",), draft.texts)


def _belongs(draft: Draft, path: KeyPath, wish: Wish) -> bool:
    """Tell whether Megatron-LM reads the key there: of --yaml-cfg (megatron/training/yaml_arguments.py) validate_yaml
    reads some at the top only, and the stages of a rank not at all.
    """
    if draft.reading.format != "megatron yaml":
        return True
    return wish.dest not in UNREAD and (len(path) == 1 or wish.dest not in AT_TOP)


def _key(draft: Draft, dest: str) -> str:
    """Return what a file with keys calls a destination. Of Megatron-LM's own YAML, as the parser does."""
    return BRIDGE.get(dest, dest) if draft.reading.format == "overrides" else dest


def _data(names: Namespace, wish: Wish) -> bool | int | float | str | list[Value] | None:
    """Return the wish as YAML has it: typed; a switch is true, one that switches off is false."""
    flag = names.table.flags[wish.option]
    value = parsed(flag, wish.values or (), wish.option)
    if isinstance(value, tuple) and len(value) == 1:
        value = value[0]
    return list(value) if isinstance(value, tuple) else value


def _anchors(draft: Draft, names: Namespace, wish: Wish) -> Sequence[Setting]:
    """Return the options beside which a new one belongs, the best first: of the nearest family, then the last
    of all.
    """
    sections = draft.reading.format == "overrides"
    dests = sorted(neighbours(wish.dest, sections, EVERY), key=lambda dest: _of_experts(dest) != _of_experts(wish.dest))
    anchors = [setting for dest in dests if (setting := names.setting(dest))]
    return [*anchors[:MOST_ANCHORS], *(() if sections else draft.reading.settings[-1:])]


def _of_experts(dest: str) -> bool:
    """Return whether an option is about experts, and stands with those that are."""
    return "moe" in dest or "expert" in dest

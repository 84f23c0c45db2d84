"""Keys of DeepSpeed's JSON: another value, one more, one less."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from symconfig.descriptor.document import KeyPath, dotted
from symconfig.existing.adapt import trees
from symconfig.existing.adapt.draft import Progress
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.reading import Tree
from symconfig.existing.launch.text import Edit, Place


@dataclass(frozen=True, slots=True)
class KeyWish:
    """One key to have this value; None: it has to go."""

    path: KeyPath
    value: Any

    @property
    def name(self) -> str:
        return dotted(self.path)

    @property
    def now(self) -> str | None:
        return None if self.value is None else trees.spelled(self.value, "json")


def keyed(progress: Progress, wish: KeyWish) -> Progress:
    """Write one key into the JSON, or say that it cannot be."""
    tree = progress.draft.reading.deepspeed
    assert tree is not None, "is asked for where there is one"
    have = tree.get(*wish.path)
    goal = progress.draft.meaning.configured(_with(tree.data, wish))
    after = progress.draft.tried(_ways(tree, wish), goal.__eq__)
    if after is None:
        why = "it cannot be written there so that nothing else changes"
        return progress.lacking(Unplaced(wish.name, wish.now, why, where(tree, wish.path)))
    was = None if have is None else trees.spelled(have, "json")
    now = after.reading.deepspeed if have is None else tree
    return progress.went(after, Change(wish.name, was, wish.now, where(now or tree, wish.path)))


def at(config: Any, path: KeyPath) -> Any:
    """Return the value of a path; None where there is none."""
    for key in path:
        config = config.get(key) if isinstance(config, dict) else None
    return config


def where(tree: Tree, path: KeyPath) -> Place:
    """Return the key's own place, or that of the section that would hold it."""
    size = next(size for size in range(len(path), -1, -1) if path[:size] in tree.spans)
    span = tree.spans[path[:size]]
    return span.key or span.value


def _ways(tree: Tree, wish: KeyWish) -> Iterator[tuple[Edit, ...]]:
    path = wish.path
    if wish.value is None:
        lonely = len(path) > 1 and len(tree.get(*path[:-1])) == 1
        yield from trees.removed(tree, path[:-1] if lonely else path)
    elif path in tree.spans:
        yield from trees.changed(tree, path, wish.value)
    else:
        yield from _inserted(tree, path, wish.value)


def _inserted(tree: Tree, path: KeyPath, value: Any) -> Iterator[tuple[Edit, ...]]:
    """Yield edits that put in a key that is not there, with the sections above it that are not there either."""
    size = next(size for size in range(len(path) - 1, -1, -1) if path[:size] in tree.spans)
    for key in reversed(path[size + 1 :]):
        value = {str(key): value}
    yield from trees.inserted(tree, path[:size], str(path[size]), value)


def _with(data: Any, wish: KeyWish) -> Any:
    """Put the wish into the data. A section that loses its only key goes with it."""
    done = copy.deepcopy(data)
    inner: Any = done
    parents: list[tuple[Any, str | int]] = []
    for key in wish.path[:-1]:
        parents.append((inner, key))
        inner = inner.setdefault(key, {})
    if wish.value is not None:
        inner[wish.path[-1]] = wish.value
        return done
    del inner[wish.path[-1]]
    if parents and not inner:
        parents[-1][0].pop(parents[-1][1])
    return done

"""YAML and JSON of other programs as data with the bytes of every key and value.

YAML has aliases, merge keys, tags and repeated keys; JSON is read as DeepSpeed reads it (hjson: comments, a comma
after the last).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from symconfig.descriptor.document import MAX_NODES, Builder, KeyPath, Open, build, plain, shorten
from symconfig.descriptor.json_strict import TOKEN, parse_json_strict
from symconfig.errors import InputError
from symconfig.existing.launch.reading import Hides, Span, Tree, Unread
from symconfig.existing.launch.text import Place, Text

_CORE = "tag:yaml.org,2002:"
_KNOWN_TAGS = frozenset(_CORE + name for name in ("str", "int", "float", "bool", "null", "map", "seq", "python/tuple"))
_SPACE = b" \t\r\n"


def parse_yaml(text: Text) -> Tree:
    """Return the data and places of a YAML file of one document beside empty ones.

    Values from aliases and merge keys have the alias's place; those with unknown tags stay text. `unread` notes unknown
    tags and repeated keys. Raises InputError, also for an empty file.
    """
    builder = _TreeBuilder(text)
    build(builder, text.data.decode().removeprefix("\ufeff"))
    if builder.problems:
        raise InputError(builder.problems)
    if builder.data is None:
        raise InputError("the file is empty", file=text.file)
    return Tree(text, builder.data, builder.spans, "yaml", tuple(builder.unread))


class _TreeBuilder(Builder):
    """Builder that resolves aliases, merge keys, tags and repeated keys, which the strict builder refuses."""

    def __init__(self, text: Text) -> None:
        super().__init__(text.file)
        self.text = text
        self.skipped = int(text.data.startswith(b"\xef\xbb\xbf"))  # the byte order mark, which the parser does not get
        self.spans: dict[KeyPath, Span] = {}
        self.key_places: dict[KeyPath, Place] = {}
        self.events: list[Any] = []  # and those that aliases bring
        self.anchors: dict[str, int] = {}  # the first event of each
        self.alias_place: Place | None = None  # of all that is read now
        self.unread: list[Unread] = []
        self.expanded = 0

    def place(self, event: Any) -> Place:
        start, end = (mark.index + self.skipped for mark in (event.start_mark, event.end_mark))
        return self.alias_place or self.trimmed(self.text.between(start, end))

    def trimmed(self, place: Place) -> Place:
        """Return the place without trailing blanks, which the parser counts to a block."""
        written = self.text.data[place.start : place.end].rstrip(_SPACE)
        return replace(place, end=place.start + len(written))

    def placed(self, path: KeyPath, event: Any) -> None:
        super().placed(path, event)
        self.spans[path] = Span(self.key_places.get(path), self.place(event))

    def new_key(self, top: Open, event: Any) -> None:
        super().new_key(top, event)
        self.key_places[(*top.path, event.value)] = self.place(event)

    def repeated(self, path: KeyPath, event: Any) -> None:
        """Record a repeated key in `unread`; the last one counts, as in most programs."""
        why = f"stands for the second time, first on line {self.keys[path].line}: the last one counts"
        self.unread.append(Unread(self.place(event), shorten(event.value), why, Hides.NOTHING))

    def close(self, done: Open, event: Any) -> None:
        """Finish a mapping or list: end its place at its last value, merge `<<` keys, attach it to its parent."""
        span = self.spans[done.path]
        last = self.place(event).end if event.end_mark.index > event.start_mark.index else 0
        if not last:  # a block ends with its last value: the parser only sees that at what comes next
            inner = done.into.keys() if isinstance(done.into, dict) else range(len(done.into))
            last = max((self.spans[(*done.path, key)].value.end for key in inner), default=span.value.end)
        self.spans[done.path] = Span(span.key, self.trimmed(replace(span.value, end=last)))
        if isinstance(done.into, dict) and "<<" in done.into:
            self.merge(done)
        super().close(done, event)

    def value_of(self, event: Any) -> Any:
        """Return a scalar's value, typed if it is plain or has a core tag but !!str, else text."""
        tag = event.tag or ""
        core = tag.startswith(_CORE) and tag in _KNOWN_TAGS and tag != _CORE + "str"
        return plain(event.value) if (event.implicit[0] or core) else event.value

    def tagged(self, event: Any) -> None:
        if event.tag not in (*_KNOWN_TAGS, "!") and self.alias_place is None:
            what = shorten(event.tag.replace(_CORE, "!!"))
            self.unread.append(Unread(self.place(event), what, "is a tag that another program gives its meaning"))

    def event(self, event: Any) -> None:
        """Handle one event, but skip empty documents. Raises InputError for a second that is not empty."""
        kind = type(event).__name__
        if self.data is not None and kind in ("ScalarEvent", "MappingStartEvent", "SequenceStartEvent", "AliasEvent"):
            if kind != "ScalarEvent" or event.value or not event.implicit[0]:
                super().further_document(event)
            return
        if kind != "AliasEvent":
            self.events.append(event)
        super().event(event)

    def further_document(self, event: Any) -> None:
        """Take the start of a document: what stands in it decides."""

    def anchored(self, event: Any) -> None:
        self.anchors[event.anchor] = len(self.events) - 1

    def alias(self, event: Any) -> None:
        """Read the events of the alias's anchor once more; all that they bring has the alias's place.

        Raises the builder's error if the anchor is unknown or not complete, or if aliases bring over MAX_NODES events.
        """
        first, depth, again = self.anchors.get(event.anchor, len(self.events)), 0, list[Any]()
        for each in map(self.events.__getitem__, range(first, len(self.events))):
            again.append(each)
            depth += type(each).__name__.endswith("StartEvent") - type(each).__name__.endswith("EndEvent")
            if not depth:
                break
        if depth or not again:
            what = "an alias stands inside of what it names" if again else "nothing before this has that name"
            raise self.stop(what, event.start_mark, got=f"*{shorten(event.anchor)}")
        self.expanded += len(again)
        if self.expanded > MAX_NODES:
            raise self.stop("aliases make too many values of this file", event.start_mark, need=f"<= {MAX_NODES:,}")
        outer, self.alias_place = self.alias_place, self.place(event)
        for each in again:
            self.event(each)
        self.alias_place = outer

    def merge(self, done: Open) -> None:
        """Merge `<<: *other` into the mapping: its own keys, then earlier mappings, take precedence.

        Merged keys and values have the place of the merged mapping.
        """
        into = done.into
        assert isinstance(into, dict)
        several = isinstance(into["<<"], list)
        sources = into["<<"] if several else [into["<<"]]
        if not all(isinstance(one, dict) for one in sources):
            return  # a key like any other
        del into["<<"]
        for index, one in enumerate(sources):
            place = self.spans[(*done.path, "<<", *([index] if several else []))].value
            for key in [key for key in one if key not in into]:
                into[key] = one[key]
                self.spans |= {(*done.path, key, *path): Span(place, place) for path in ((), *_inside(one[key]))}


def _inside(value: Any) -> Iterator[KeyPath]:
    """Yield the paths of all values nested in a value, without the value itself."""
    waiting: list[tuple[KeyPath, Any]] = [((), value)]
    while waiting:
        path, one = waiting.pop()
        items = one.items() if isinstance(one, dict) else enumerate(one) if isinstance(one, list) else ()
        for key, inner in items:
            yield (*path, key)
            waiting.append(((*path, key), inner))


_STRING = r'"(?:[^"\\\n]|\\.)*"'
_COMMENT = re.compile(rf"{_STRING}|//[^\n]*|#[^\n]*|/\*.*?\*/", re.DOTALL)
_LAST_COMMA = re.compile(rf"{_STRING}|,(?=\s*[\]}}])")


def parse_json(text: Text) -> Tree:
    """Return the data and places of a JSON file, which may have comments and trailing commas. Raises InputError."""
    plain = text.data.decode().replace("\ufeff", " ", 1)
    for aside in (_COMMENT, _LAST_COMMA):
        plain = aside.sub(lambda match: match[0] if match[0][0] == '"' else re.sub(r"[^\n]", " ", match[0]), plain)
    data = parse_json_strict(plain, text.file).data
    return Tree(text, data, _spans(plain, text.between), "json")


def _spans(plain: str, place: Callable[[int, int], Place]) -> dict[KeyPath, Span]:
    """Return Span(key, value) of every value of valid JSON by path; () is the root. A list item's key place is None.

    place: returns the place of characters [start, end).
    """
    spans: dict[KeyPath, Span] = {}
    opened: list[tuple[KeyPath, Place | None, int]] = []  # path, key and start of what is not closed yet
    path: list[str | int | None] = []  # of the next value; it ends in None before a key
    key: Place | None = None
    for match in TOKEN.finditer(plain):
        token, start, end = match[0], match.start(), match.end()
        if token in "]}":
            path.pop()
            where, named, first = opened.pop()
            spans[where] = Span(named, place(first, end))
        elif token == ",":
            path[-1] = path[-1] + 1 if isinstance(path[-1], int) else None
        elif path and path[-1] is None:
            path[-1], key = json.loads(token), place(start, end)
        elif token != ":":
            where = tuple(each for each in path if each is not None)
            if token in "[{":
                opened.append((where, key, start))
                path.append(0 if token == "[" else None)
            else:
                spans[where] = Span(key, place(start, end))
            key = None
    return spans

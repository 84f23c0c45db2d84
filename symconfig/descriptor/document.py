"""Documents: plain data with the line and column of every key path, for error messages; and the YAML that they are read
from: scalars of YAML 1.2, no duplicate keys, no aliases, no tags.

`Builder` also reads files of other programs (`launch.trees`), which do have aliases and tags.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeAlias, Unpack

from symconfig.errors import InputError, Problem, Right
from symconfig.resources import content

KeyPath: TypeAlias = tuple[str | int, ...]
MAX_DEPTH = 100
MAX_BYTES = 8 * 1024 * 1024
MAX_PROBLEMS = 100  # nobody reads more, and finding a hint for each of a hundred thousand takes minutes


@dataclass(frozen=True, slots=True)
class Place:
    """Line and column, both counted from one."""

    line: int
    column: int


@dataclass(frozen=True, slots=True)
class Document:
    """Parsed data of a file with the places of its keys and values, for error messages.

    data: dict, list, str, int, float, bool, None. keys, values: place by path. unread: problems of values that could
    not be read, which are None in the data.
    """

    data: Any
    file: str
    keys: Mapping[KeyPath, Place] = field(default_factory=dict)
    values: Mapping[KeyPath, Place] = field(default_factory=dict)
    unread: tuple[Problem, ...] = ()

    def place(self, path: KeyPath, *, of_key: bool = False) -> Place | None:
        """Return the place of the path, else of the nearest container around it; None if no place is known.

        of_key: the key's place is preferred to the value's; by default the value's is.
        """
        for length in range(len(path), -1, -1):
            first, second = (self.keys, self.values) if of_key else (self.values, self.keys)
            place = first.get(path[:length]) or second.get(path[:length])
            if place is not None:
                return place
        return None

    def problem(
        self,
        what: str,
        path: KeyPath = (),
        *,
        of_key: bool = False,
        got: str | None = None,
        need: str | None = None,
        hint: str | None = None,
    ) -> Problem:
        """Return, without recording it, a Problem with this file, the place of the path (`place`) and the parts given.

        field is the path as text, None for an empty one; line and column are None if no place is known.
        """
        place = self.place(path, of_key=of_key)
        return Problem(
            what=what,
            file=self.file,
            line=place.line if place else None,
            column=place.column if place else None,
            field=dotted(path) or None,
            got=got,
            need=need,
            hint=hint,
        )

    def placed(self, problem: Problem) -> Problem:
        """Return the problem with this file, and line and column of its field, or of the nearest section around it;
        without these if no place is known. Unchanged if it has a file or no field, or the document has no file.
        """
        if not self.file or problem.file is not None or problem.field is None:
            return problem
        place = self.place(tuple(problem.field.split(".")))
        return replace(
            problem, file=self.file, line=place.line if place else None, column=place.column if place else None
        )

    def stated(self, problem: Problem) -> Problem:
        """Return the problem with the line of its field if the document has that field; else unchanged."""
        there = problem.field is not None and self.place(tuple(problem.field.split("."))) is not None
        return self.placed(problem) if there else problem


class ProblemParts(Right, total=False):
    """Optional parts of a Problem, for those who pass it on to `Document.problem`."""

    got: str | None


def dotted(path: KeyPath) -> str:
    """Return a path as text of at most 200 characters: `experts.num_experts`, `levels[2].size`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else part)
    return shorten(text, 200)


def shorten(value: object, limit: int = 60) -> str:
    """Return a value as printable text of at most `limit` characters; a longer one is cut and ends in "…".

    Values other than text are shown by their repr. Characters that cannot be printed become "?".
    """
    text = value if isinstance(value, str) else repr(value)
    text = "".join(ch if ch.isprintable() else "?" for ch in text[: limit + 1])
    return text if len(text) <= limit else text[: limit - 1] + "…"


def called(word: str, known: Iterable[str]) -> str | None:
    """Return the first known name equal to the word but for case; None if there is none."""
    return next((name for name in known if name.lower() == word.lower()), None)


def read_text(path: Path, limit: int = MAX_BYTES) -> str:
    """Return the file's text, decoded as UTF-8, without a byte order mark.

    limit: the largest size in bytes. Raises InputError for a file that is missing, not regular, may not be read, is
    larger, or is not UTF-8 (with the line).
    """
    file, raw = str(path), content(path, limit)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InputError("the file is not UTF-8 text", file=file, line=line) from None


# The core schema of YAML 1.2 (section 10.3.2). PyYAML follows 1.1, where 1e-5 is a string and 12:30 is 750.
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INT = re.compile(r"[-+]?[0-9]+\Z|0o[0-7]+\Z|0x[0-9a-fA-F]+\Z")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?\Z")
_NOT_FINITE = re.compile(r"([-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))\Z")
_MAX_DIGITS = 100  # longer numbers are a mistake, and CPython refuses int() of more than 4,300 digits
MAX_NODES = 100_000


@dataclass(slots=True)
class Open:
    """A mapping or sequence whose end is not yet parsed. key: the mapping's key that waits for its value."""

    path: KeyPath
    into: dict[str, Any] | list[Any]
    key: str | None = None


@dataclass(slots=True)
class Builder:
    """A builder of data and places from PyYAML's events, without recursion.

    data: the document's value once it is complete. stack: open containers, outermost first. keys, values: places by
    path. problems: those that do not stop reading. documents: number of documents so far.
    """

    file: str
    data: Any = None
    stack: list[Open] = field(default_factory=list)
    keys: dict[KeyPath, Place] = field(default_factory=dict)
    values: dict[KeyPath, Place] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    documents: int = 0

    def path(self) -> KeyPath:
        """Return the path of the next value: in a list its index, in a mapping the current key ("" before one)."""
        if not self.stack:
            return ()
        top = self.stack[-1]
        return (*top.path, len(top.into) if isinstance(top.into, list) else (top.key or ""))

    def report(self, what: str, mark: Any, path: KeyPath = (), **parts: Unpack[ProblemParts]) -> Problem:
        document = Document(None, self.file, {}, {path: _place(mark)})
        return document.problem(what, path, **parts)

    def stop(self, what: str, mark: Any, **parts: Unpack[ProblemParts]) -> InputError:
        return InputError([*self.problems, self.report(what, mark, (), **parts)])

    def too_deep(self, mark: Any) -> InputError:
        return self.stop("the file is nested too deeply", mark, need=f"at most {MAX_DEPTH} levels")

    def event(self, event: Any) -> None:
        """Handle one PyYAML event: change `data`, `stack`, `keys`, `values`, `problems` and `documents`.

        Raises InputError, with the problems so far, for what ends the reading: aliases, anchors, tags, a second
        document, a key that is no scalar, too deep a nesting. Subclasses may take some of these.
        """
        kind = type(event).__name__
        mark = event.start_mark
        if kind == "AliasEvent":
            self.alias(event)
            return
        if getattr(event, "anchor", None) is not None:
            self.anchored(event)
        if getattr(event, "tag", None) is not None and kind != "DocumentStartEvent":
            self.tagged(event)
        if kind == "DocumentStartEvent":
            self.documents += 1
            if self.documents > 1:
                self.further_document(event)
        elif kind == "ScalarEvent":
            self.scalar(event, mark)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            self.open({} if kind.startswith("M") else [], event)
        elif kind in ("MappingEndEvent", "SequenceEndEvent"):
            self.close(self.stack.pop(), event)

    def alias(self, event: Any) -> None:
        self.refuse_name("aliases are not allowed", event)

    def anchored(self, event: Any) -> None:
        self.refuse_name("anchors are not allowed", event)

    def refuse_name(self, what: str, event: Any) -> None:
        raise self.stop(what, event.start_mark, got=shorten(event.anchor), hint="write the value out where it is used")

    def tagged(self, event: Any) -> None:
        raise self.stop("tags are not allowed", event.start_mark, got=shorten(event.tag))

    def further_document(self, event: Any) -> None:
        raise self.stop("the file holds more than one document", event.start_mark, hint="remove what follows '---'")

    def placed(self, path: KeyPath, event: Any) -> None:
        """Record the event's start as the place of the value at this path."""
        self.values[path] = _place(event.start_mark)

    def close(self, done: Open, event: Any) -> None:
        """Add a complete mapping or sequence, which is no longer on the stack, to the container around it."""
        self.put(done.into)

    def scalar(self, event: Any, mark: Any) -> None:
        """Add a scalar as the current mapping's next key if it waits for one, else as a value, and record its place.

        A value that cannot be parsed is recorded as a problem, and None is added instead.
        """
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.into, dict) and top.key is None:
            self.new_key(top, event)
            return
        path = self.path()
        self.placed(path, event)
        try:
            self.put(self.value_of(event))
        except ValueError as error:
            self.problems.append(self.report(str(error), mark, path, got=shorten(event.value)))
            self.put(None)

    def value_of(self, event: Any) -> Any:
        """Return a scalar's value: parsed if it is plain, else its text. Raises ValueError."""
        return plain(event.value) if event.implicit[0] else event.value

    def new_key(self, top: Open, event: Any) -> None:
        """Make the event's text the current key of a mapping, and record its place.

        A key that the mapping has already is recorded as a problem; the first place is kept, and the later value wins.
        """
        key, mark = event.value, event.start_mark
        path = (*top.path, key)
        assert isinstance(top.into, dict)
        if key in top.into:
            self.repeated(path, event)
        self.keys.setdefault(path, _place(mark))
        top.key = key

    def repeated(self, path: KeyPath, event: Any) -> None:
        """Record the problem of a duplicate key, with the line of the first one."""
        first = self.keys[path].line
        self.problems.append(self.report(f"duplicate key, first on line {first}", event.start_mark, path))

    def open(self, into: dict[str, Any] | list[Any], event: Any) -> None:
        """Push an empty mapping or sequence on the stack and record its place; `close` adds it to its container.

        Raises InputError where the mapping around it waits for a key, and beyond MAX_DEPTH levels.
        """
        mark = event.start_mark
        top = self.stack[-1] if self.stack else None
        if top is not None and isinstance(top.into, dict) and top.key is None:
            raise self.stop("a key must be a plain word", mark)
        if len(self.stack) >= MAX_DEPTH:
            raise self.too_deep(mark)
        path = self.path()
        self.placed(path, event)
        self.stack.append(Open(path, into))

    def put(self, value: Any) -> None:
        """Add a value to the innermost open container: append it, or set it at the mapping's current key.

        The key is then cleared. Without an open container the value becomes `data`.
        """
        if not self.stack:
            self.data = value
            return
        top = self.stack[-1]
        if isinstance(top.into, list):
            top.into.append(value)
        else:
            assert top.key is not None
            top.into[top.key] = value
            top.key = None


def _place(mark: Any) -> Place:
    return Place(mark.line + 1, mark.column + 1)


def plain(text: str) -> Any:
    """Return an unquoted scalar's value by YAML 1.2: None, bool, int (also 0o and 0x), float, else the text.

    Raises ValueError for infinity, NaN, floats that overflow, and integers of more than 100 characters.
    """
    if text in _NULL:
        return None
    if text in _BOOL:
        return _BOOL[text]
    if _NOT_FINITE.match(text):
        raise ValueError("not a finite number")
    if _INT.match(text):
        if len(text) > _MAX_DIGITS:
            raise ValueError(f"a number of more than {_MAX_DIGITS} digits")
        return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
    if _FLOAT.match(text):
        number = float(text)
        if not math.isfinite(number):
            raise ValueError("a number too large for a float")
        return number
    return text


def parse_yaml_strict(text: str, file: str) -> Document:
    """Parse YAML text to data with the place of each key and value. Raises InputError with all problems."""
    document = read_yaml(text, file)
    if document.unread:
        raise InputError(list(document.unread))
    return document


def read_yaml(text: str, file: str) -> Document:
    """Parse YAML text to a Document; problems with single values and keys are in its `unread`, not raised.

    Raises InputError for a file without a value (empty or null), and for what ends the reading (`build`).
    """
    builder = Builder(file)
    build(builder, text)
    if builder.data is None and not builder.problems:
        raise InputError("the file is empty", file=file)
    return Document(builder.data, file, builder.keys, builder.values, tuple(builder.problems))


def build(builder: Builder, text: str) -> None:
    """Feed every parser event of the text to the builder, which it changes.

    Raises InputError, with the builder's problems, for invalid YAML, MAX_PROBLEMS problems, more than MAX_NODES values,
    and what the builder refuses.
    """
    import yaml  # here, since each command line imports this module

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml where PyYAML was built with it: ten times faster
    try:
        for event in yaml.parse(text, Loader=loader):
            builder.event(event)
            if len(builder.problems) >= MAX_PROBLEMS:
                raise builder.stop("there are more problems after this one", event.start_mark)
            if len(builder.values) > MAX_NODES:
                raise builder.stop("the file holds too many values", event.start_mark, need=f"<= {MAX_NODES:,}")
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        if "nesting depth" in (error.problem or ""):  # libyaml since 0.2.6 looks ahead, and stops before the event
            raise builder.too_deep(mark) from None
        what = f"this is not YAML: {error.problem or error.context}"
        syntax = builder.report(what, mark) if mark else Problem(what, file=builder.file)
        raise InputError([*builder.problems, syntax]) from None
    except yaml.YAMLError as error:  # the reader: characters that YAML forbids
        first = str(error).splitlines()[0]
        raise InputError([*builder.problems, Problem(f"this is not YAML: {first}", file=builder.file)]) from None


def load_yaml_strict(path: Path) -> Document:
    """Load a YAML file to data with the place of each key and value. Raises InputError with all problems."""
    return parse_yaml_strict(read_text(path, MAX_BYTES), str(path))

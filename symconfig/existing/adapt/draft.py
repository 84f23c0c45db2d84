"""Files being edited: every edit is tried in memory, read again, and kept only if it changes exactly what it should;
and the result: what was changed, what could not be placed, and the files as they are now."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeAlias

from symconfig.errors import Problem, SymconfigError
from symconfig.existing.adapt import words
from symconfig.existing.launch.reading import Reading, Setting, Word
from symconfig.existing.launch.text import Edit, Place, Text, edited
from symconfig.render.files import sh

SCHEMA = "symconfig.adapt/1"
NO_PLACE = "no place was found where it would reach the training and change nothing else"
ELSE_TOO = "to write it there would change something else as well"
KEY_TOO = "it cannot be written there so that nothing else changes"  # of a key of a JSON
MADE = "the script writes this file itself, and not from a text that stands in it just so"
NO_NEWLINE = "\\ No newline at end of file\n"


@dataclass(frozen=True, slots=True)
class Change:
    """A changed option, launcher number, environment variable or key.

    was, now: its value before and after; None: it was added or removed; "": a switch. place: where it was, or is.
    """

    option: str
    was: str | None
    now: str | None
    place: Place

    def __str__(self) -> str:
        """Return "place: option was -> now" on one line, or "... added", "... removed"."""
        if self.was is None:
            done = f"{f'{self.option} {self.now}'.strip()} added"
        elif self.now is None:
            done = f"{f'{self.option} {self.was}'.strip()} removed"
        else:
            done = f"{self.option} {self.was} -> {self.now}"
        return f"{self.place}: {done}"


@dataclass(frozen=True, slots=True)
class Unplaced:
    """A value of the plan that could not be written and has to be set by hand.

    now: the value; None: the option has to be removed. why: a clause to follow "because". place: where to look.
    """

    option: str
    now: str | None
    why: str
    place: Place | None = None

    def __str__(self) -> str:
        where = f"{self.place}: " if self.place is not None else ""
        what = f"remove {self.option}" if self.now is None else f"put {f'{self.option} {self.now}'.strip()}"
        return f"{where}{what} by hand, because {self.why}"


@dataclass(frozen=True, slots=True)
class Flaw:
    """An error that an audit finds in the result. rule: its name. before: the original had it, too."""

    rule: str
    problem: Problem
    before: bool

    def __str__(self) -> str:
        whose = "It was there before." if self.before else "The plan's values bring it."
        return f"{self.problem} [{self.rule}] {whose}"


@dataclass(frozen=True, slots=True)
class Adapted:
    """The result of adapting a configuration.

    reading: the original. files: new bytes of the changed files, by name. unplaced: values to be set by hand. notes:
    sentences about the result. flaws: errors in its audit.
    """

    reading: Reading
    files: Mapping[str, bytes]
    changes: tuple[Change, ...]
    unplaced: tuple[Unplaced, ...]
    notes: tuple[str, ...] = ()
    flaws: tuple[Flaw, ...] = ()

    @property
    def done(self) -> bool:
        """Return whether no value is left to be set by hand, and the audit of the result finds no error."""
        return not self.unplaced and not self.flaws

    @property
    def diff(self) -> str:
        """Return the unified diff of all changed files, in the order in which they were read; empty if none changed."""
        return "".join(
            _unified(text.file, text.data, self.files[text.file])
            for text in self.reading.texts
            if text.file in self.files
        )

    def to_dict(self, written: bool) -> dict[str, Any]:
        """Return the document that --json prints (changes, unplaced, errors, notes, diff), but for the path of the
        plan, which the command adds. written: whether the changed files are on disk already.
        """

        def at(place: Place | None) -> dict[str, Any]:
            return {"file": place and place.file, "line": place and place.line}

        return {
            "schema": SCHEMA,
            "file": self.reading.file,
            "changes": [
                {"option": each.option, "from": each.was, "to": each.now, **at(each.place)} for each in self.changes
            ],
            "unplaced": [
                {"option": each.option, "to": each.now, "why": each.why, **at(each.place)} for each in self.unplaced
            ],
            "errors": [
                {
                    "rule": flaw.rule,
                    "option": flaw.problem.field,
                    **{name: getattr(flaw.problem, name) for name in ("what", "got", "need", "file", "line")},
                    "before": flaw.before,
                }
                for flaw in self.flaws
            ],
            "notes": list(self.notes),
            "diff": self.diff,
            "written": written,
        }


def _unified(file: str, before: bytes, after: bytes) -> str:
    """Return the unified diff of two versions of a file, as `patch` takes it; empty where they are equal."""
    name = file.lstrip("/")
    old, new = (re.findall(r"[^\n]*\n|[^\n]+", data.decode("utf-8", "replace")) for data in (before, after))
    lines = difflib.unified_diff(old, new, f"a/{name}", f"b/{name}")
    return "".join(line if line.endswith("\n") else f"{line}\n{NO_NEWLINE}" for line in lines)


# Reads the same configuration with these files' bytes instead of what the disk has.
Reader: TypeAlias = Callable[[Mapping[str, bytes]], Reading]
Option: TypeAlias = tuple[str, tuple[str, ...]]  # its name and its values
Ways: TypeAlias = Iterator[tuple[Edit, ...]]  # alternative edits, the most natural first


@dataclass(frozen=True, slots=True)
class Meaning:
    """All that a configuration says, without places, to compare before and after an edit.

    settings: the program's options. launcher: the words before the program. environment, scheduler: values by name.
    deepspeed, accelerate: data of these files, None without one. unread: what was not read, and why. others: words of
    all other commands of the script.
    """

    settings: tuple[Option, ...]
    launcher: tuple[str, ...]
    environment: Mapping[str, str]
    scheduler: Mapping[str, str]
    deepspeed: Any
    accelerate: Any
    unread: tuple[tuple[str, str], ...]
    others: tuple[tuple[str, ...], ...]

    @classmethod
    def of(cls, reading: Reading) -> Self:
        """Return the meaning of a reading; unknown values are text and reason together."""
        return cls(
            settings=tuple(map(option_of, reading.settings)),
            launcher=tuple(map(_key, reading.launcher)),
            environment={name: _key(word) for name, word in reading.environment.items()},
            scheduler={name: _key(word) for name, word in reading.scheduler.items()},
            deepspeed=reading.deepspeed.data if reading.deepspeed is not None else None,
            accelerate=reading.accelerate.data if reading.accelerate is not None else None,
            unread=tuple((item.what, item.why) for item in reading.unread),
            others=reading.others,
        )

    def put(self, part: str, key: Any, value: Any) -> Meaning:
        """Return the meaning with one value of a part replaced: the launcher's word of index `key`, or a value by name.

        part: "launcher", "environment", "scheduler" or "accelerate".
        """
        if part == "environment":
            return self.exported(str(key), value)
        old = getattr(self, part)
        items: Any = (*old[:key], value, *old[key + 1 :]) if isinstance(old, tuple) else {**old, key: value}
        return replace(self, **{part: items})

    def exported(self, name: str, value: str) -> Meaning:
        """Return the meaning with an environment variable set, also where a launcher sets it."""
        launcher = (f"{name}={value}" if word.startswith(f"{name}=") else word for word in self.launcher)
        return replace(self, environment={**self.environment, name: value}, launcher=tuple(launcher))


def option_of(setting: Setting) -> Option:
    """Return an option as a `Meaning` has it."""
    return setting.name, tuple(map(_key, setting.values))


def _key(word: Word) -> str:
    return word.text if word.unknown is None else f"{word.text}\0{word.unknown}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration under edit.

    read: reads it with other file contents. reading: the configuration as it is now. files: bytes of changed files, by
    name.
    """

    read: Reader
    reading: Reading
    files: Mapping[str, bytes]

    @property
    def texts(self) -> dict[str, Text]:
        return {text.file: text for text in self.reading.texts}

    @property
    def meaning(self) -> Meaning:
        return Meaning.of(self.reading)

    def sources(self, place: Place) -> list[Place]:
        """Return the places where it can be edited: for one in a file that the script writes those in the script where
        the file's whole text stands; any other as it is.
        """
        texts = self.texts
        if (made := texts.get(place.file)) is None or not made.made:
            return [place]
        return [
            text.place(start + place.start, start + place.end)
            for text in texts.values()
            if made.data and not text.made
            for start in (match.start() for match in re.finditer(re.escape(made.data), text.data))
        ]

    def in_source(self, place: Place) -> Place | None:
        """Return the only place of `sources`; None without one, or with several."""
        places = self.sources(place)
        return places[0] if len(places) == 1 else None

    def first_right(self, attempts: Iterable[Sequence[Edit]], right: Callable[[Meaning], bool]) -> Draft | None:
        """Return the draft after the first group of edits whose result is `right` by its meaning; None without one.

        Each group is applied in memory and the files are read again; one that makes them unreadable is passed over, and
        so is one in the text of a file that the script writes if another file that it writes changes too.
        """
        texts = self.texts
        for attempt in attempts:
            made = {edit.place.file for edit in attempt if edit.place.file in texts and texts[edit.place.file].made}
            places = [self.sources(edit.place) for edit in attempt]
            for at in range(max(map(len, places), default=0) if all(places) else 0):
                edits = [
                    Edit(some[min(at, len(some) - 1)], edit.text) for some, edit in zip(places, attempt, strict=True)
                ]
                if any(edit.place.file not in texts for edit in edits):
                    continue  # in a file that is not one of its own, such as a template
                try:
                    changed = {file: edited(texts[file], edits) for file in {edit.place.file for edit in edits}}
                    files = {**self.files, **changed}
                    after = Draft(self.read, self.read(files), files)
                except (SymconfigError, ValueError):  # it cannot be read any more, or the edits overlap
                    continue
                if right(after.meaning) and (not made or after.written_but(made) == self.written_but(made)):
                    return after
        return None

    def written_but(self, names: Collection[str]) -> dict[str, bytes]:
        """Return the bytes of the files that the script writes, by name, without those of `names`."""
        return {text.file: text.data for text in self.reading.written if text.file not in names}


@dataclass(frozen=True, slots=True)
class Progress:
    """A draft, with the changes made so far, the values that could not be placed, and notes."""

    draft: Draft
    changes: tuple[Change, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    notes: tuple[str, ...] = ()

    def with_changes(self, draft: Draft, *changes: Change) -> Progress:
        return replace(self, draft=draft, changes=(*self.changes, *changes))

    def with_unplaced(self, option: str, now: str | None, why: str, place: Place | None = None) -> Progress:
        """Return the progress with one more value to be set by hand; unchanged if it has that already.

        For a place in a file that the script itself writes it is that of `Draft.in_source`; without one that is the
        reason, instead of ELSE_TOO and KEY_TOO.
        """
        if any((item.option, item.now) == (option, now) for item in self.unplaced):
            return self
        if place is not None:
            source = self.draft.in_source(place)
            why = MADE if source is None and why in (ELSE_TOO, KEY_TOO) else why
            place = source or place
        return replace(self, unplaced=(*self.unplaced, Unplaced(option, now, why, place)))

    def with_note(self, note: str) -> Progress:
        return self if note in self.notes else replace(self, notes=(*self.notes, note))


def with_notes(progress: Progress) -> Progress:
    """Return the progress with notes about its effects; unchanged if it has no changes.

    One per other program that is left as it is, and one per changed file other than the configuration's own.
    """
    reading = progress.draft.reading
    for item in reading.unread if progress.changes else ():
        if item.why.startswith("is another program"):
            progress = progress.with_note(f"{item.place}: {item.what} {item.why}; it is left as it is.")
    for file in progress.draft.files:
        if file != reading.file:
            progress = progress.with_note(
                f"{file} is changed as well: whatever else sources or names it gets the plan's values, too."
            )
    return progress


def with_option(
    draft: Draft,
    given: Setting | None,
    anchors: Iterable[Setting],
    option: str,
    values: Sequence[str] | None,
    gains: Callable[[Option], bool],
    loses: Callable[[Option], bool],
) -> Draft | None:
    """Return the draft with an option given these values, or removed (None); None if no edit does that and no more.

    given: the option as it stands; None: it is added behind one of `anchors`. gains, loses: whether another option may
    come or go along with it. `true` and `True` are one value.
    """
    before, old = draft.meaning, None if given is None else option_of(given)
    wanted = None if values is None else (option, [value.lower() for value in values])

    def right(after: Meaning) -> bool:
        then, now = Counter(before.settings), Counter(after.settings)
        gained, lost = now - then, then - now
        done = any((name, [*map(str.lower, texts)]) == wanted for name, texts in gained) or wanted is None
        done &= wanted is not None or old is None or lost[old] == 1
        only = all(map(gains, gained)) and all(map(loses, lost))
        return done and only and replace(after, settings=before.settings) == before

    for setting in anchors if given is None else (given,):
        ways = _edits(draft, setting, option if given is None else "", values)
        if (after := draft.first_right(ways, right)) is not None:
            return after
    return None


def _edits(draft: Draft, setting: Setting, added: str, values: Sequence[str] | None) -> Ways:
    """Yield alternative edits that give a setting other values, remove it (None), or add the option `added` behind."""
    texts = draft.texts
    if added:
        yield from words.added(setting, (added, *(values or ())), texts)
    elif values is None:
        yield from words.removed(setting, texts)
    elif len(values) == len(setting.values) == 1:
        yield from words.valued(setting, values[0], texts)
    elif setting.values:  # all words at once, quoted and then bare
        first, last = setting.values[0].place, setting.values[-1].place
        if first.file == last.file and first.file in texts and first.start <= last.end:
            for spelled in dict.fromkeys((" ".join(map(sh, values)), " ".join(values))):
                yield (Edit(texts[first.file].place(first.start, last.end), spelled),)

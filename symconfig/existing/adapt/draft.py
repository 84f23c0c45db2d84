"""Files being edited: every edit is tried in memory, read again, and kept only if it says exactly what it should."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

from symconfig.errors import SymconfigError
from symconfig.existing.adapt.outcome import Change, Unplaced
from symconfig.existing.launch.reading import OTHER_RUN, Reading, Setting, Word
from symconfig.existing.launch.text import Edit, Text, edited
from symconfig.existing.recover.arguments import plain
from symconfig.formats.megatron_run import DECIDED
from symconfig.frameworks.megatron.flags import FlagTable

# Reads the same configuration with these files' bytes instead of what the disk has.
Reader = Callable[[Mapping[str, bytes]], Reading]


@dataclass(frozen=True, slots=True)
class Meaning:
    """All that a configuration says, without places, to compare before and after an edit.

    settings: names and values of the program's options. launcher: the words before the program. environment, scheduler:
    pairs of name and value. deepspeed, accelerate: data of these files, None without one. unread: what was not read,
    and why. runs: further runs of the same program, which are changed alike. others: words of all other commands of the
    script.
    """

    settings: tuple[tuple[str, tuple[str, ...]], ...]
    launcher: tuple[str, ...]
    environment: tuple[tuple[str, str], ...]
    deepspeed: Any
    accelerate: Any
    unread: tuple[tuple[str, str], ...]
    scheduler: tuple[tuple[str, str], ...]
    runs: tuple[Meaning, ...]
    others: tuple[tuple[str, ...], ...]

    @classmethod
    def by(cls, reading: Reading) -> Self:
        """Return the meaning of a reading, that of its further runs included.

        Unknown values compare by the reason, too.
        """
        return cls(
            settings=tuple((setting.name, tuple(map(_key, setting.values))) for setting in reading.settings),
            launcher=tuple(map(_key, reading.launcher)),
            environment=tuple(sorted((name, _key(word)) for name, word in reading.environment.items())),
            deepspeed=reading.deepspeed.data if reading.deepspeed is not None else None,
            accelerate=reading.accelerate.data if reading.accelerate is not None else None,
            unread=tuple(
                (item.what, item.why) for item in reading.unread if item.why != OTHER_RUN
            ),  # they are in `runs`
            scheduler=tuple(sorted((name, _key(word)) for name, word in reading.scheduler.items())),
            runs=tuple(map(Meaning.by, reading.runs)),
            others=reading.others,
        )

    def setting(self, index: int, values: Sequence[str] | None) -> Self:
        """Return the meaning with other values for the option at `index`, or without it (None), alike in all runs that
        have it so.
        """
        old = self.settings[index]
        place = self.settings[: index + 1].count(old) - 1
        mine = replace(self, settings=_other(self.settings, index, values))
        return replace(mine, runs=tuple(run._alike(old, place, values) for run in self.runs))

    def _alike(self, old: tuple[str, tuple[str, ...]], place: int, values: Sequence[str] | None) -> Self:
        """Return this run's meaning with the same change, if it has an option equal to `old`, the `place`-th of those.

        Return it unchanged otherwise.
        """
        places = [index for index, each in enumerate(self.settings) if each == old]
        if place >= len(places):
            return self
        return replace(self, settings=_other(self.settings, places[place], values))

    def exported(self, name: str, value: str) -> Self:
        """Return the meaning with an environment variable set in all runs, also where a launcher's word sets it."""
        environment = {**dict(self.environment), name: value}
        launcher = (f"{name}={value}" if word.startswith(f"{name}=") else word for word in self.launcher)
        return replace(
            self,
            environment=tuple(sorted(environment.items())),
            launcher=tuple(launcher),
            runs=tuple(run.exported(name, value) for run in self.runs),
        )

    def without(self, name: str) -> Self:
        """Return the meaning without an environment variable, in all runs."""
        environment = tuple(item for item in self.environment if item[0] != name)
        return replace(self, environment=environment, runs=tuple(run.without(name) for run in self.runs))

    def configured(self, data: Any) -> Self:
        """Return the meaning with new DeepSpeed data, also in all runs that had the same data."""
        runs = (run.configured(data) if run.deepspeed == self.deepspeed else run for run in self.runs)
        return replace(self, deepspeed=data, runs=tuple(runs))

    def less(self, names: Collection[str]) -> Self:
        """Return the meaning without options of these names (with underscores), in all runs."""
        kept = tuple(each for each in self.settings if plain(each[0]) not in names)
        return replace(self, settings=kept, runs=tuple(run.less(names) for run in self.runs))

    def says(self, name: str) -> tuple[str, ...] | None:
        """Return the values of the last option of this name (with underscores); None if it is not given."""
        return next((values for each, values in reversed(self.settings) if plain(each) == name), None)

    def gained(self, name: str, values: Sequence[str], after: Self) -> bool:
        """Return whether `after` is this meaning with one option more, at any position, in every run."""
        new = name, tuple(values)
        if len(self.runs) != len(after.runs) or not all(
            run.gained(name, values, now) for run, now in zip(self.runs, after.runs, strict=True)
        ):
            return False
        same = replace(after, runs=self.runs)
        return any(
            replace(same, settings=_other(after.settings, index, None)) == self
            for index, item in enumerate(after.settings)
            if item == new
        )


def _other(
    settings: tuple[tuple[str, tuple[str, ...]], ...], index: int, values: Sequence[str] | None
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    now = () if values is None else ((settings[index][0], tuple(values)),)
    return (*settings[:index], *now, *settings[index + 1 :])


def _key(word: Word) -> str:
    return word.text if word.unknown is None else f"{word.text}\0{word.unknown}"


@dataclass(frozen=True, slots=True)
class Draft:
    """A configuration under edit.

    read: reads it with other file contents. reading: the configuration as it is now. files: bytes of the files that
    differ from the disk, by name.
    """

    read: Reader
    reading: Reading
    files: Mapping[str, bytes]

    @property
    def texts(self) -> dict[str, Text]:
        return {text.file: text for text in self.reading.texts}

    @property
    def meaning(self) -> Meaning:
        return Meaning.by(self.reading)

    def tried(self, attempts: Iterable[Sequence[Edit]], right: Callable[[Meaning], bool]) -> Draft | None:
        """Return the draft after the first of the alternative edits that leaves a meaning that is `right`.

        Return None if none does. Edits that overlap, touch a file outside the draft, or leave something unreadable are
        passed over.
        """
        for edits in attempts:
            after = self._after(edits)
            if after is not None and right(after.meaning):
                return after
        return None

    def _after(self, edits: Sequence[Edit]) -> Draft | None:
        """Return the draft after these edits, read again in memory; None if they cannot be made or read."""
        texts = self.texts
        if not edits or any(edit.place.file not in texts for edit in edits):
            return None  # in a file that is not one of its own: a script's heredoc, a template
        try:
            changed = {file: edited(texts[file], edits) for file in {edit.place.file for edit in edits}}
            files = {**self.files, **changed}
            return Draft(self.read, self.read(files), files)
        except (SymconfigError, ValueError):  # it cannot be read any more, or the edits overlap
            return None

    def index(self, setting: Setting) -> int:
        return next(index for index, each in enumerate(self.reading.settings) if each is setting)


@dataclass(frozen=True, slots=True)
class Progress:
    """A draft, with the changes made so far, the values that could not be placed, and notes."""

    draft: Draft
    changes: tuple[Change, ...] = ()
    unplaced: tuple[Unplaced, ...] = ()
    notes: tuple[str, ...] = ()

    def went(self, draft: Draft, change: Change) -> Progress:
        return replace(self, draft=draft, changes=(*self.changes, change))

    def lacking(self, unplaced: Unplaced) -> Progress:
        if any((item.option, item.now) == (unplaced.option, unplaced.now) for item in self.unplaced):
            return self
        return replace(self, unplaced=(*self.unplaced, unplaced))

    def noted(self, note: str) -> Progress:
        return self if note in self.notes else replace(self, notes=(*self.notes, note))


MOST_PLACES = 6  # that a sentence names


def apart(reading: Reading, table: FlagTable) -> bool:
    """Return whether runs of the same program have different values of options that a plan decides."""
    names = {name for name, flag in table.flags.items() if flag.dest in DECIDED}
    return several(reading, names)


def several(reading: Reading, names: Collection[str]) -> bool:
    """Return whether runs have different values of the options with these names, or different DeepSpeed data."""
    mine = _values(reading, names)
    return any(_values(run, names) != mine for run in reading.runs)


def _values(reading: Reading, names: Collection[str]) -> object:
    """Return what `several` compares: the values of these options by name, and the whole DeepSpeed data."""
    values = {
        setting.name: [(word.text, word.unknown) for word in setting.values]
        for setting in reading.settings
        if setting.name in names
    }
    return values, reading.deepspeed.data if reading.deepspeed is not None else None


def why_apart(reading: Reading) -> str:
    """Return the reason why runs with different values cannot be adapted, as a clause to follow "because"."""
    return (
        f"{_program(reading)} is started {len(reading.runs) + 1} times with different values "
        f"({_places(reading)}), and the plan is for one of them"
    )


def _program(reading: Reading) -> str:
    return Path(reading.program.text).name if reading.program is not None else "the program"


def _places(reading: Reading) -> str:
    """Return the places where the runs are started, up to six, joined by commas."""
    places = dict.fromkeys(str(run.program.place) for run in (reading, *reading.runs) if run.program is not None)
    shown = list(places)[:MOST_PLACES]
    return ", ".join(shown) + (", ..." if len(places) > len(shown) else "")


def noted(progress: Progress) -> Progress:
    """Return the progress with notes about further runs, other programs and other changed files.

    Return it unchanged without changes.
    """
    if not progress.changes:
        return progress
    reading = progress.draft.reading
    if reading.runs:
        progress = progress.noted(
            f"{_program(reading)} is started {len(reading.runs) + 1} times ({_places(reading)}); "
            "all of them say the same of what the plan decides, and are changed alike."
        )
    lines = {run.program.place.line for run in (reading, *reading.runs) if run.program is not None}
    for item in reading.unread:
        if item.why.startswith("is another program") and not (reading.runs and item.place.line in lines):
            progress = progress.noted(f"{item.place}: {item.what} {item.why}; it is left as it is.")
    for file in progress.draft.files:
        if file != reading.file:
            progress = progress.noted(
                f"{file} is changed as well: whatever else sources or names it gets the plan's values, too."
            )
    return progress


def alike(reading: Reading, setting: Setting) -> tuple[Setting, ...]:
    """Return the option, and the equal one (name and values) of every other run that has it."""
    words = setting.texts
    same = (
        next(
            (each for each in reversed(run.settings) if each.name == setting.name and each.texts == words),
            None,
        )
        for run in reading.runs
    )
    return setting, *(each for each in same if each is not None)


def together(ways: Sequence[Iterator[tuple[Edit, ...]]]) -> Iterator[tuple[Edit, ...]]:
    """Yield, for each alternative, the edits of all runs at once; equal edits are made once.

    ways: for each run its alternatives; it ends with the shortest.
    """
    for each in zip(*ways, strict=False):
        yield tuple(dict.fromkeys(edit for edits in each for edit in edits))

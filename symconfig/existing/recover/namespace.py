"""Options as Megatron-LM's parser holds them: a value by destination, given or by default, each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place
from symconfig.frameworks.megatron.flags import Flag, FlagTable, Value, defaults, flags, option, parsed, versions


class Namespace(Mapping[str, Value]):
    """Values of one Megatron-LM version's parser: `names["hidden_size"]`; None if there is neither value nor default.

    The last of a repeated option wins, as in argparse. An option that only other versions have is read as the nearest
    version does (`foreign`); one in no version is in `unknown`. A value that the parser refuses is in `problems`, and
    is read as another version does if any accepts it. Otherwise, and if its text is not known, it is in `dark`: reading
    it gives the default and records it in `missed`, so that callers know whether the value was needed.
    """

    def __init__(self, settings: Sequence[Setting], table: FlagTable) -> None:
        self.table = table
        self.settings = tuple(settings)
        self.unknown: list[Setting] = []  # in no version
        self.foreign: list[Setting] = []  # in other versions
        self.problems: list[Problem] = []
        self.dark: dict[str, Problem] = {}
        self.missed: dict[str, Problem] = {}
        self.written: dict[str, Setting] = {}  # the last option of a destination, its value known or not
        self._given: dict[str, tuple[Value, Setting]] = {}
        self.repeated: list[Setting] = []
        for setting in settings:
            self._record(setting)

    def _record(self, setting: Setting) -> None:
        """Record one setting: its value, or why it has none in `unknown`, `foreign`, `problems` and `dark`."""
        flag = self.table.flags.get(setting.name)
        if flag is None:
            flag = _of_nearest_version(setting.name, self.table.version)
            (self.unknown if flag is None else self.foreign).append(setting)
            if flag is None:
                return
        self.written[flag.dest] = setting
        dark = next((word for word in setting.values if word.unknown), None)
        self.dark.pop(flag.dest, None)
        if dark is not None:
            self.dark[flag.dest] = setting.problem(f"its value {dark.unknown}", got=dark.text or None)
            return
        try:
            value = parsed(flag, setting.texts, setting.name)
        except ValueError as error:
            words = setting.text
            refused = setting.problem("has a value that the parser refuses", got=words or "nothing", need=str(error))
            self.problems.append(refused)
            value = _parsed_by_any_version(setting)
            if value is None:
                self.dark[flag.dest] = refused
                return
        if flag.dest in self._given and self._given[flag.dest][1].name == setting.name:
            self.repeated.append(setting)
        self._given[flag.dest] = value, setting

    def __getitem__(self, dest: str) -> Value:
        if self._unreadable(dest):
            return defaults(self.table.version).get(dest)
        if dest in self._given:
            return self._given[dest][0]
        return defaults(self.table.version).get(dest)

    def __iter__(self) -> Iterator[str]:
        yield from {**defaults(self.table.version), **self._given}

    def __len__(self) -> int:
        return len({**defaults(self.table.version), **self._given})

    def setting(self, dest: str) -> Setting | None:
        """Return the setting that gives a destination its value; None if it has the default."""
        setting = self._given.get(dest)
        return None if setting is None else setting[1]

    def given(self, dest: str) -> bool:
        return self._unreadable(dest) or dest in self._given

    def _unreadable(self, dest: str) -> bool:
        """Return whether the destination's value is unreadable, and record that in `missed`."""
        if dest not in self.dark:
            return False
        self.missed[dest] = self.dark[dest]
        return True

    def place(self, *dests: str) -> Place | None:
        """Return where the first given destination stands in the file; None if none is given."""
        return next((self._given[dest][1].place for dest in dests if dest in self._given), None)

    def whole(self, dest: str, otherwise: int = 1) -> int:
        """Return the value as an integer; `otherwise` if it is absent or of another type."""
        value = self[dest]
        return value if isinstance(value, int) and not isinstance(value, bool) else otherwise

    def option(self, dest: str, value: Value = True) -> str:
        """Return the option of this version that sets `dest`; for a switch the one that sets it to `value`.

        Raises KeyError if there is none.
        """
        return option(self.table, dest, value)


@cache
def _of_nearest_version(name: str, version: str) -> Flag | None:
    """Return the option as defined in the version nearest to this one; None if no version has it."""
    order = versions()
    mine = order.index(version)
    having = sorted((v for v in order if flags(v).known(name)), key=lambda v: abs(order.index(v) - mine))
    return flags(having[0]).flags[name] if having else None


def _parsed_by_any_version(setting: Setting) -> Value:
    """Return the value as parsed by the newest version that accepts it; None if none does."""
    for version in reversed(versions()):
        flag = flags(version).flags.get(setting.name)
        try:
            if flag is not None:
                return parsed(flag, setting.texts, setting.name)
        except ValueError:
            continue
    return None


def version_of(names: Sequence[str]) -> str:
    """Return the version that has most of these options; of several the newest release, "main" last."""
    order = versions()
    return max(order, key=lambda v: (sum(flags(v).known(name) for name in set(names)), v != "main", order.index(v)))


def as_mapping(names: Mapping[str, Any]) -> Mapping[str, Value]:
    """Return a namespace that Megatron printed (`measured.training_log`) with lists as tuples, for `described`."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in names.items()}

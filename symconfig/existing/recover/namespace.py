"""Options as Megatron-LM's parser holds them: a value by destination, given or by default, each with its place."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any

from symconfig.errors import Problem
from symconfig.existing.launch.reading import Setting
from symconfig.existing.launch.text import Place, problem_at
from symconfig.frameworks.megatron.flags import FlagTable, Value, defaults, flag_near, flags, option, parsed, versions


class Namespace(Mapping[str, Value]):
    """Values of one Megatron-LM version's parser: `names["hidden_size"]`; None if there is neither value nor default.

    The last of a repeated option wins, as in argparse. An option that only other versions have is read as the nearest
    version does (`foreign`); one in no version is in `unknown`. A value that the parser refuses is in `problems`. It,
    and a value whose text is not known, is in `dark`: reading it gives the default and records it in `missed`, so that
    callers know whether the value was needed.
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
        self._given: dict[str, tuple[Value, Setting | None]] = {}
        self.printed = False  # whether Megatron printed the values, so that there are no options
        self.repeated: list[Setting] = []
        for setting in settings:
            self._record(setting)

    def _record(self, setting: Setting) -> None:
        """Record one setting's value in place of an earlier one of its destination.

        An option of no version goes to `unknown` and sets nothing, one of other versions is also in `foreign`. An
        unknown value goes to `dark`, a refused one to `problems`, too. `repeated` gets a readable value that follows
        another one of the same option.
        """
        flag = self.table.flags.get(setting.name)
        if flag is None:
            flag = flag_near(setting.name, self.table.version)
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
            self.dark[flag.dest] = refused
            return
        before = self.setting(flag.dest)
        if before is not None and before.name == setting.name:
            self.repeated.append(setting)
        self._given[flag.dest] = value, setting

    def __getitem__(self, dest: str) -> Value:
        if not self._unreadable(dest) and dest in self._given:
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

    def given(self, *dests: str) -> bool:
        """Return whether any of the destinations is given rather than left at its default."""
        return any(self._unreadable(dest) or dest in self._given for dest in dests)

    def _unreadable(self, dest: str) -> bool:
        """Return whether the destination's value is unreadable, and record that in `missed`."""
        if dest not in self.dark:
            return False
        self.missed[dest] = self.dark[dest]
        return True

    def place(self, *dests: str) -> Place | None:
        """Return where the first given destination stands in the file; None if none is given."""
        settings = (self.setting(dest) for dest in dests)
        return next((setting.place for setting in settings if setting is not None), None)

    def whole(self, dest: str, otherwise: int = 1) -> int:
        """Return the value as an integer; `otherwise` if it is absent or of another type."""
        value = self.integer(dest)
        return otherwise if value is None else value

    def value(self, *dests: str) -> Value:
        """Return the first given destination's value (default if unreadable), else the first default, else None."""
        for dest in dests:
            if self.given(dest):
                return self[dest]
        preset = defaults(self.table.version)
        return next((preset[dest] for dest in dests if preset.get(dest) is not None), None)

    def integer(self, *dests: str) -> int | None:
        """Return the value as an integer; None if it is absent or of another type (a bool or a float)."""
        value = self.value(*dests)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, otherwise: float, *dests: str) -> float:
        value = self.value(*dests)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise

    def switch(self, *dests: str) -> bool:
        return bool(self.value(*dests))

    def word(self, *dests: str) -> str:
        """Return the value as text; an empty string if there is none."""
        value = self.value(*dests)
        return "" if value is None else str(value)

    def words(self, *dests: str) -> tuple[str, ...]:
        """Return the values as texts: items of a tuple, or of a text such as "a,b" or "['a', 'b']"; () without any."""
        value = self.value(*dests)
        if isinstance(value, tuple):
            return tuple(map(str, value))
        return tuple(part.strip(" '\"") for part in self.word(*dests).strip("[]").split(",") if part.strip())

    def spelled(self, dest: str) -> str:
        """Return the option's name as the file spells it, else as this version does (of a switch what turns it on).

        `dest` for values that Megatron-LM printed; --dest with dashes if this version has no option for it.
        """
        if (setting := self.setting(dest)) is not None:
            return setting.spelled
        return dest if self.printed else option(self.table, dest) or self.option(dest, False)

    def problem(
        self, what: str, *dests: str, got: object = None, need: str | None = None, hint: str | None = None
    ) -> Problem:
        """Return a problem at the first destination given, else about the first one; `got` is cut to 80 characters."""
        dest = next((dest for dest in dests if self.given(dest)), dests[0])
        text = None if got is None else str(got)[:80]
        return problem_at(self.place(dest), what, field=self.spelled(dest), need=need, hint=hint, got=text)

    def option(self, dest: str, value: Value = True) -> str:
        """Return this version's option that sets `dest`, for a switch to `value`; --dest with dashes without one."""
        return option(self.table, dest, value) or "--" + dest.replace("_", "-")


def version_of(names: Sequence[str]) -> str:
    """Return the version that has most of these options; of several the newest release, "main" last."""
    order = versions()
    return max(order, key=lambda v: (sum(flags(v).known(name) for name in set(names)), v != "main", order.index(v)))


def printed_namespace(arguments: Mapping[str, Any], table: FlagTable | None = None) -> Namespace:
    """Return the namespace of values that Megatron-LM printed: all that is not None counts as given, without a place.

    Texts are read as the option's values, lists as tuples. table: options of the version that printed them; None: of
    the one that shares most argument names with `arguments`, of several the one with the fewest arguments.
    """
    if table is None:
        known = {version: defaults(version).keys() for version in versions()}
        table = flags(max(known, key=lambda version: (len(known[version] & arguments.keys()), -len(known[version]))))
    names = Namespace((), table)
    names.printed = True
    stored = {flag.dest: flag for flag in names.table.flags.values() if flag.kind == "store"}
    for dest, value in arguments.items():
        if isinstance(value, str) and (flag := stored.get(dest)) is not None:
            words = [value] if flag.nargs in (None, "?") else re.findall(r"[\w.+-]+", value)
            with suppress(ValueError):
                value = parsed(flag, words, flag.name)
        if value is not None:
            names._given[dest] = (tuple(value) if isinstance(value, list) else value), None
    return names

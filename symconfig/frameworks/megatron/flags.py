"""Every option of Megatron-LM's pretrain_gpt.py, by version, and a check of an argument list against it.

tools/flags.py writes the data file from dumps of Megatron's own argument parser.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TypeAlias

from symconfig.errors import InputError, Problem, nearest
from symconfig.resources import json_data

DATA = Path(__file__).with_name("flags.json")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+(e[+-]?\d+)?|-\d+e[+-]?\d+", re.IGNORECASE)

# Of a destination, as the parser holds it.
Value: TypeAlias = bool | int | float | str | tuple["Value", ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One option. `kind`: store, true, false or optional; `nargs` None: exactly one value; `default` as printed."""

    name: str
    dest: str
    kind: str
    type: str | None
    nargs: int | str | None
    choices: tuple[str, ...]
    default: str


@dataclass(frozen=True, slots=True)
class FlagTable:
    """The options of one version."""

    version: str
    flags: dict[str, Flag]

    def known(self, name: str) -> bool:
        return name in self.flags

    def at_least(self, version: str) -> bool:
        """Return whether this version is `version` or later in the table's order, main last.

        Raises:
            ValueError: `version` is not spelled as in the table.
        """
        return versions().index(self.version) >= versions().index(version)

    def check(self, args: Sequence[str]) -> list[Problem]:
        """Return a Problem for each thing that this version's parser would refuse in a list of arguments; [] if none.

        They are values without an option, unknown options (abbreviations too), and wrong numbers or types of values. Of
        an unknown option `need` has the first and the last version that have it, `hint` the most similar name.
        """
        problems: list[Problem] = []
        position = 0
        while position < len(args):
            token = args[position]
            position += 1
            name, joined, value = token.partition("=")
            if not is_option(token):
                problems.append(Problem("belongs to no option", field="megatron arguments", got=repr(token)))
                continue
            values = [value] if joined else []
            while not joined and position < len(args) and not is_option(args[position]):
                values.append(args[position])
                position += 1
            flag = self.flags.get(name)
            if flag is None:
                hint = nearest(name, self.flags, most=1, alike=0.75)
                what = f"is not an option of Megatron-LM {self.version}"
                problems.append(Problem(what, field=name, need=lifetime(name), hint=hint))
                continue
            try:
                parsed(flag, values, name)
            except ValueError as error:
                got = " ".join(values) or "nothing"
                problems.append(Problem("has a value that the parser refuses", field=name, got=got, need=str(error)))
        return problems


def is_option(token: str) -> bool:
    """Return whether argparse takes a word for an option: it begins with a dash and is no negative number."""
    return len(token) > 1 and token[0] == "-" and not _NEGATIVE_NUMBER.fullmatch(token)


def parsed(flag: Flag, words: Sequence[str], name: str) -> Value:
    """Return an option's value as the parser stores it: a bool for a switch, a tuple for several, else one value.

    None if an optional value (nargs ?) is absent. words: the values as given. name: the spelling of the option, since
    --no-x of an optional switch gives False.

    Raises:
        ValueError: the parser would refuse them; the text says what is needed.
    """
    if flag.kind in ("true", "false", "optional"):
        if words:
            raise ValueError("no value")
        return flag.kind == "true" if flag.kind != "optional" else not name.startswith("--no-")
    if flag.nargs in ("+", "*") or isinstance(flag.nargs, int):
        if isinstance(flag.nargs, int) and len(words) != flag.nargs:
            raise ValueError(f"{flag.nargs} values")
        if flag.nargs == "+" and not words:
            raise ValueError("at least one value")
        return tuple(_scalar(flag, word) for word in words)
    if len(words) != 1:
        if flag.nargs == "?" and not words:
            return None
        raise ValueError("one value")
    return _scalar(flag, words[0])


def _whole_numbers(word: str) -> str:
    for part in word.strip("()").split(","):
        int(part)
    return word


def _pattern(word: str) -> str:
    """Return a word of digits, commas, brackets, parentheses, + and * as it is, since Megatron-LM evaluates it.

    Raises ValueError, without a text, for any other word.
    """
    if not re.fullmatch(r"[\d,\[\]()+*]+", word):
        raise ValueError
    return word


_Type: TypeAlias = tuple[Callable[[str], Value], str]  # how a word is read, and what it has to be
_PATTERN: _Type = (_pattern, "numbers, or a list expression of them")
_TEXT: _Type = (lambda text: text.removeprefix("AttnBackend."), "")
_TYPES: dict[str | None, _Type] = {
    "int": (int, "a whole number"),
    "float": (float, "a number"),
    "tuple_type": (_whole_numbers, "whole numbers with commas between them"),
    "moe_freq_type": _PATTERN,
    "no_rope_freq_type": _PATTERN,
    "la_freq_type": _PATTERN,
}


def _scalar(flag: Flag, word: str) -> Value:
    """Return one value in the option's type; of an unknown type the text, without a leading `AttnBackend.`.

    Raises:
        ValueError: it has another type or is no choice; the text says what is needed.
    """
    read, needed = _TYPES.get(flag.type, _TEXT)
    try:
        value = read(word)
    except ValueError:
        raise ValueError(needed) from None
    if flag.choices and str(value) not in flag.choices:
        meant = nearest(word, flag.choices)
        raise ValueError(f"one of {', '.join(flag.choices)}" + (f" ({meant}?)" if meant else ""))
    return value


@cache
def defaults(version: str) -> dict[str, Value]:
    """Return the default of every destination in a version; of several options the last one's."""
    return {flag.dest: _default(flag) for flag in flags(version).flags.values()}


def _default(flag: Flag) -> Value:
    """Return an option's default from its printed text: None, a bool, a tuple for lists, else a value of its type.

    The text itself if the option's type does not take it.
    """
    if flag.default in ("None", ""):
        return None
    if flag.default in ("True", "False"):
        return flag.default == "True"
    try:
        if flag.nargs in ("+", "*") or flag.default.startswith("["):
            return tuple(_scalar(flag, item) for item in re.findall(r"[\w.+-]+", flag.default))
        return _scalar(flag, flag.default)
    except ValueError:
        return flag.default


@cache
def versions() -> tuple[str, ...]:
    """Return the names of all versions, oldest first, `main` last."""
    return tuple(json_data(DATA)["versions"])


def resolve(version: str) -> str:
    """Return the table's name of a version: core_v0.19, core_r0.19.0, 0.19.2 -> core_v0.19.0; the next one -> main.

    Patch releases count as their minor release, since options do not change between them; the next one is the minor
    release after the newest in the table.

    Raises:
        InputError: the table has no such version; similar ones are its hint.
    """
    if version in versions():
        return version
    match = re.fullmatch(r"(?:core_)?[vr]?(\d+)\.(\d+)(?:\.\d+)?(?:rc\d+)?", version)
    if match:
        for known in versions():
            if known.startswith(f"core_v{match[1]}.{match[2]}."):
                return known
        if (match[1], int(match[2]) - 1) == ("0", int(versions()[-2].split(".")[1])):
            return versions()[-1]
    raise InputError(
        "is not a Megatron-LM version that symconfig knows",
        field="megatron_version",
        got=repr(version),
        need="one of " + ", ".join(versions()),
        hint="main" if version.startswith("dev") else nearest(version, versions(), alike=0.5),
    )


@cache
def flags(version: str) -> FlagTable:
    """Return the options of one version, cached; raise InputError for a version that is not in the table."""
    version = resolve(version)
    data = json_data(DATA)
    bit = 1 << data["versions"].index(version)
    by_name: dict[str, Flag] = {}
    for name, rows in data["flags"].items():
        for mask, spec, default, *more in rows:
            if mask & bit:
                kind, type_, nargs, choices = data["specs"][spec]
                by_name[name] = Flag(
                    name=name,
                    dest=_dest(name, spec, default, *more),
                    kind=kind,
                    type=type_,
                    nargs=nargs,
                    choices=tuple(choices),
                    default=default,
                )
    return FlagTable(version, by_name)


def option(table: FlagTable, dest: str, value: object = True) -> str | None:
    """Return the name of the option that sets a destination to a value; of a switch the one for True or for False.

    The one that is spelled like the destination comes first, options for just this value before optional switches.
    Values other than False count as True. None if no option does.
    """
    wanted = ("false",) if value is False else ("true", "store")
    spelled = "--" + dest.replace("_", "-")
    named = sorted(_by_dest(table.version).get(dest, ()), key=lambda flag: flag.name != spelled)
    for flag in named:
        if flag.kind in wanted:
            return flag.name
    for flag in named:
        if flag.kind == "optional" and flag.name.startswith("--no-") == (value is False):
            return flag.name
    return None


@cache
def _by_dest(version: str) -> dict[str, list[Flag]]:
    by_dest: dict[str, list[Flag]] = {}
    for flag in flags(version).flags.values():
        by_dest.setdefault(flag.dest, []).append(flag)
    return by_dest


@cache
def destination_by_version(name: str) -> dict[str, str]:
    """Return the destination of an option by version, oldest first; {} for an unknown option. name: with its dashes."""
    rows = json_data(DATA)["flags"].get(name, ())
    return {v: _dest(name, *more) for at, v in enumerate(versions()) for mask, *more in rows if mask >> at & 1}


def _dest(name: str, spec: int, default: str, dest: str | None = None) -> str:
    """Return the destination of a row of an option: what it states, or the option's name with underscores."""
    return dest or name.lstrip("-").replace("-", "_")


def first_with(name: str) -> str | None:
    """Return the oldest version that has an option; None if none has. name: with its dashes."""
    return next(iter(destination_by_version(name)), None)


def lifetime(name: str) -> str | None:
    """Return the first and the last version that have an option, as "core_v0.12.0 to main"; None if none has."""
    having = list(destination_by_version(name))
    return " to ".join(dict.fromkeys((having[0], having[-1]))) if having else None


@cache
def flag_near(name: str, version: str) -> Flag | None:
    """Return the option as the nearest version has it (of two the earlier); None if no version has it. Cached."""
    order = versions()
    mine = order.index(version)
    having = min(destination_by_version(name), key=lambda v: abs(order.index(v) - mine), default=None)
    return None if having is None else flags(having).flags[name]

"""Every option of Megatron-LM's pretrain_gpt.py, by version, and a check of an argument list against it.

The data file is made from JSON dumps of Megatron's own argument parser, one per version, by
`python -m symconfig.frameworks.megatron.flags SOURCE_DIR`. From core_v0.16 on most options are generated from
dataclasses, so the source text alone does not show them.
"""

from __future__ import annotations

import difflib
import json
import math
import re
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, TypeAlias

from symconfig.errors import InputError, Problem

DATA = Path(__file__).with_name("flags.json")
SOURCE = "argument parser of github.com/NVIDIA/Megatron-LM at each tag; dev-2026-08 is main at d98e8a64"
_INT = re.compile(r"[+-]?\d+(_\d+)*")
_NEGATIVE_NUMBER = re.compile(r"-\d+|-\d*\.\d+(e[+-]?\d+)?|-\d+e[+-]?\d+", re.IGNORECASE)
_PATTERN = re.compile(r"[\d,\[\]()+*]+")  # Megatron evaluates such a list expression and allows these characters only

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
        """Tell whether this version is `version` or later. For what changed without an option of its own."""
        return versions().index(self.version) >= versions().index(version)

    def check(self, args: Sequence[str]) -> list[Problem]:
        """Return what this version's parser would refuse in `args`, all of it."""
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
            problems += [self._unknown(name)] if flag is None else _check_values(flag, values)
        return problems

    def _unknown(self, name: str) -> Problem:
        since = [v for v in versions() if flags(v).known(name)]
        matches = difflib.get_close_matches(name, self.flags, n=1, cutoff=0.75)
        return Problem(
            f"is not an option of Megatron-LM {self.version}",
            field=name,
            need=None if not since else since[0] if since[0] == since[-1] else f"{since[0]} to {since[-1]}",
            hint=matches[0] if matches else None,
        )


def is_option(token: str) -> bool:
    """Tell options as argparse does: a dash in front, and not a negative number."""
    return len(token) > 1 and token[0] == "-" and not _NEGATIVE_NUMBER.fullmatch(token)


def _counts(nargs: int | str | None) -> tuple[int, float]:
    """Return the fewest and most values."""
    if isinstance(nargs, int):
        return nargs, nargs
    return {None: (1, 1), "?": (0, 1), "*": (0, math.inf), "+": (1, math.inf)}[nargs]


def _check_values(flag: Flag, values: list[str]) -> list[Problem]:
    wanted = {None: "one value", "+": "at least one value", 0: "no value"}.get(flag.nargs, f"{flag.nargs} values")
    few, many = _counts(flag.nargs)
    right = few <= len(values) <= many
    if not right:
        return [Problem("has the wrong number of values", field=flag.name, got=" ".join(values) or "none", need=wanted)]
    return [
        Problem(
            "has a value that the parser refuses",
            field=flag.name,
            got=repr(value),
            need=f"one of {', '.join(flag.choices)}" if flag.choices else f"type {flag.type}",
        )
        for value in values
        if not _parses(flag, value)
    ]


def _float(value: str) -> bool:
    try:
        float(value)
    except ValueError:
        return False
    return True


_TYPES: dict[str, Callable[[str], bool]] = {
    "int": lambda value: bool(_INT.fullmatch(value)),
    "float": _float,
    "tuple_type": lambda value: all(_INT.fullmatch(part.strip()) for part in value.strip("()").split(",")),
    "moe_freq_type": lambda value: bool(_PATTERN.fullmatch(value)),
    "no_rope_freq_type": lambda value: bool(_PATTERN.fullmatch(value)),
    "la_freq_type": lambda value: bool(_PATTERN.fullmatch(value)),
}


def _parses(flag: Flag, value: str) -> bool:
    if flag.type in _TYPES and not _TYPES[flag.type](value):
        return False
    if flag.choices and flag.type == "int":
        return int(value) in {int(choice) for choice in flag.choices}
    return not flag.choices or value in flag.choices


@cache
def _data() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(DATA.read_text(encoding="utf-8"))
    return data


def versions() -> tuple[str, ...]:
    """Return the versions, oldest first."""
    return tuple(_data()["versions"])


def resolve(version: str) -> str:
    """Spell a version as the table does: core_v0.19, core_r0.19.0, 0.19.2 -> core_v0.19.0; dev, main -> dev-2026-08.

    Options do not change between patch releases. Raises InputError.
    """
    if version in versions():
        return version
    if version in ("dev", "main"):
        return next(v for v in versions() if v.startswith("dev"))
    match = re.fullmatch(r"(?:core_)?[vr]?(\d+)\.(\d+)(?:\.\d+)?(?:rc\d+)?", version)
    if match:
        for known in versions():
            if known.startswith(f"core_v{match[1]}.{match[2]}."):
                return known
    raise InputError(
        Problem(
            "is not a Megatron-LM version that symconfig knows",
            field="megatron_version",
            got=repr(version),
            need="one of " + ", ".join(versions()),
        )
    )


def at_least(release: str, since: str) -> bool:
    """Say whether a release is that one or a later one. Raises InputError for one that is not in the table."""
    known = versions()
    return known.index(resolve(release)) >= known.index(resolve(since))


@cache
def flags(version: str) -> FlagTable:
    """Return the options of one version. Raises InputError for a version that is not in the table."""
    version = resolve(version)
    data = _data()
    bit = 1 << data["versions"].index(version)
    by_name: dict[str, Flag] = {}
    for name, rows in data["flags"].items():
        for mask, spec, default, *dest in rows:
            if mask & bit:
                kind, type_, nargs, choices = data["specs"][spec]
                by_name[name] = Flag(
                    name=name,
                    dest=dest[0] if dest else name.lstrip("-").replace("-", "_"),
                    kind=kind,
                    type=type_,
                    nargs=nargs,
                    choices=tuple(choices),
                    default=default,
                )
    return FlagTable(version, by_name)


def option(table: FlagTable, dest: str, value: object = True) -> str:
    """Return the option of a destination; of a switch the one that sets `value`; of several the one that is spelled
    like the destination. Raises KeyError where there is none.
    """
    wanted = ("false",) if value is False else ("true", "store")
    spelled = "--" + dest.replace("_", "-")
    named = sorted(_of_dest(table.version).get(dest, ()), key=lambda flag: flag.name != spelled)
    for flag in named:
        if flag.kind in wanted:
            return flag.name
    for flag in named:
        if flag.kind == "optional" and flag.name.startswith("--no-") == (value is False):
            return flag.name
    raise KeyError(dest)


@cache
def _of_dest(version: str) -> dict[str, tuple[Flag, ...]]:
    by_dest: dict[str, tuple[Flag, ...]] = {}
    for flag in flags(version).flags.values():
        by_dest[flag.dest] = (*by_dest.get(flag.dest, ()), flag)
    return by_dest


def first_with(name: str) -> str | None:
    """Return the first version that has the option."""
    return next((version for version in versions() if flags(version).known(name)), None)


_KINDS = {
    "_StoreAction": "store",
    "_StoreTrueAction": "true",
    "_StoreFalseAction": "false",
    "BooleanOptionalAction": "optional",
}


def _spec(entry: dict[str, Any]) -> tuple[str, str | None, int | str | None, tuple[str, ...]]:
    """Return kind, type, nargs and choices of one dumped option, without what the dump cannot tell."""
    type_ = entry.get("type")
    choices = tuple(choice.removeprefix("AttnBackend.") for choice in entry.get("choices", ()))
    if type_ == "enum_type_handler" and choices[:1] == ("1",):
        choices = ()  # signals are given by name, the dump prints numbers
    return _KINDS[entry["kind"]], type_, entry.get("nargs"), choices


def build(tables: dict[str, dict[str, dict[str, Any]]]) -> str:
    """Write the data file's text: per option, the versions (as bits) that share a spec, a default and a dest."""
    specs: dict[tuple[Any, ...], int] = {}
    rows: dict[str, dict[tuple[Any, ...], int]] = {}
    for bit, table in enumerate(tables.values()):
        for name, entry in table.items():
            dest = [] if entry["dest"] == name.lstrip("-").replace("-", "_") else [entry["dest"]]
            key = (specs.setdefault(_spec(entry), len(specs)), entry["default"], *dest)
            rows.setdefault(name, {}).setdefault(key, 0)
            rows[name][key] |= 1 << bit
    flag_lines = [
        f"{json.dumps(name)}: {json.dumps([[mask, *key] for key, mask in rows[name].items()])}" for name in sorted(rows)
    ]
    spec_lines = [json.dumps(list(spec)) for spec in specs]
    return (
        f'{{"source": {json.dumps(SOURCE)},\n"versions": {json.dumps(list(tables))},\n"specs": [\n'
        + ",\n".join(spec_lines)
        + '\n],\n"flags": {\n'
        + ",\n".join(flag_lines)
        + "\n}}\n"
    )


def _order(version: str) -> tuple[bool, tuple[int, ...]]:
    return version.startswith("dev"), tuple(map(int, re.findall(r"\d+", version)))


def main(argv: Iterable[str]) -> int:
    """Rebuild the data file from a folder of dumps named <version>.json."""
    (source,) = argv
    names = sorted((path.stem for path in Path(source).glob("*.json")), key=_order)
    tables = {name: json.loads((Path(source) / f"{name}.json").read_text(encoding="utf-8")) for name in names}
    DATA.write_text(build(tables), encoding="utf-8")
    print(f"{DATA.name}: {len(tables)} versions, {DATA.stat().st_size} bytes")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))

"""A growing Megatron-LM argument list: ordered groups of options, and everything that had to be refused."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from symconfig.errors import Problem
from symconfig.formats.megatron_run import RUN
from symconfig.frameworks.constraint import Constraint
from symconfig.frameworks.megatron.flags import FlagTable, first_with, versions
from symconfig.frameworks.megatron.hybrid import GPT_SCRIPT
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.render.files import word

# Bash arrays of launch.sh, in their order. Names as in Megatron-LM's examples.
GROUPS = ("MODEL_ARGS", *RUN)


@dataclass(frozen=True, slots=True)
class Group:
    """One bash array of launch.sh. options: each an option with its values, as words."""

    name: str
    options: tuple[tuple[str, ...], ...]


@dataclass(slots=True)
class Arguments:
    """A collector of options for one release. Problems are collected, too; none is raised here."""

    table: FlagTable
    edited: frozenset[str] = frozenset()  # fields that the job says Megatron-LM was changed to know
    filled: dict[str, list[tuple[str, ...]]] = field(default_factory=lambda: {name: [] for name in GROUPS})
    problems: list[Problem] = field(default_factory=list)
    group: str = GROUPS[0]
    program: str = GPT_SCRIPT

    def put(self, flag: str, *values: object) -> None:
        """Add an option with its values to the current group; True gives a switch, and nothing is added if any is None
        or False. A single value that begins with a dash is joined by `=`, as argparse requires. One of several that
        does, and any with NUL or invalid Unicode, also becomes a problem; the option is added nevertheless.
        """
        if any(value is None or value is False for value in values):
            return
        words = [word(value) for value in values if value is not True]
        dashed = [text for text in words if text.startswith("-")]
        joined = len(words) == 1 and bool(dashed)
        if dashed and not joined:
            self.problems.append(
                Problem(
                    "cannot be passed: one of several values starts with a dash",
                    field=flag,
                    got=repr(dashed[0]),
                    hint=f"./{dashed[0]}",
                )
            )
        for text in words:
            if bad := unpassable(text):
                self.problems.append(Problem(f"cannot be passed to a program: {bad}", field=flag, got=repr(text)))
        self.filled[self.group].append((f"{flag}={words[0]}",) if joined else (flag, *words))

    def refuse(
        self,
        name: str,
        why: str,
        got: object = None,
        *,
        since: str | None = None,
        hint: str | None = None,
        pins: tuple[str, ...] = (),
        edit: str | None = None,
    ) -> None:
        """Add a problem that `name` cannot be expressed, with `why`; nothing if it has an `edit` and `name` is in
        `edited`. got: the value. since: the first version that can; it is the default hint. pins: each of them avoids
        the problem. edit: a change of Megatron-LM's code, without cost, that avoids it.
        """
        if edit is not None and name in self.edited:
            return
        where = f"Megatron-LM's {self.program} cannot express it: {why}"
        if since is not None:
            where = f"Megatron-LM {self.table.version} cannot express it: {why}"
            hint = hint or f"megatron_version: {since} or later"
        text = None if got is None else str(got)
        self.problems.append(Problem(where, field=name, got=text, hint=hint, pins=pins, edit=edit))

    def refuse_all(self, refused: Mapping[Constraint, Problem]) -> None:
        """Add the problem of each failed constraint; if the constraint ends with a release (`until`), the problem names
        the next one as the first that can.
        """
        for constraint, one in refused.items():
            until = constraint.until and megatron_release(constraint.until)
            since = next((name for name in versions() if until and megatron_release(name) > until), None)
            self.refuse(one.field or "", one.what, one.got, since=since, hint=one.hint, pins=one.pins)

    def needs(self, name: str, flag: str, why: str, got: object = None) -> bool:
        """Return whether this version has the option `flag`; if not, add a problem about `name` with the first version
        that has it.
        """
        if self.table.known(flag):
            return True
        self.refuse(name, why, got, since=first_with(flag))
        return False

    def groups(self) -> tuple[Group, ...]:
        """Return the groups that have options, in order."""
        return tuple(Group(name, tuple(options)) for name, options in self.filled.items() if options)


def unpassable(text: str) -> str | None:
    """Return why a text cannot be an argument of a program: it has a NUL, or lone surrogates; None if it can."""
    if "\0" in text:
        return "it holds a NUL character"
    try:
        text.encode()
    except UnicodeEncodeError:
        return "it is not valid Unicode"
    return None

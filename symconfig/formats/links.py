"""Links between fields and options of Megatron-LM: tables of a model and of a plan, written by rendering and read by
recovering."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from functools import cache
from typing import Any, Protocol

from symconfig.formats.layer_pattern import pattern
from symconfig.frameworks.megatron.flags import FlagTable, first_with, flags, versions_with

OPEN = object()  # what a link reads where its option leaves the field to whatever else says it
Values = Mapping[Any, Any]


class Writer(Protocol):
    """Collects the options that fields give in one release, and a refusal of each field that has none."""

    table: FlagTable

    def put(self, flag: str, *values: object) -> None: ...
    def refuse(self, name: str, why: str, got: object, *, since: str | None = ..., edit: str | None = ...) -> None: ...


class Reader(Protocol):
    """Looks options up by destination, and collects the model's fields that they give, each with its destinations."""

    args: Any

    def get(self, field: str) -> Any: ...
    def put(self, field: str, value: object, *dests: str) -> None: ...
    def refuse(self, what: str, *dests: str, got: object = None, need: str | None = None) -> None: ...


@dataclass(frozen=True, slots=True)
class Link:
    """A field of a model or plan and the option for it; without a field the option is only written.

    when: values of other fields under which the link holds, for writing and reading. words: option values by field
    values; else write: a function of the field's value and the model that returns the option's value (a tuple: several
    values; None or False: no option); read: the inverse, None for no value. default: the field's value without the
    option. also: further destinations that the field depends on. since, until: the releases in which the option has an
    effect, `until` excluded. why: the reason of the refusal in other releases; without it the option is left out.
    optional: it is also left out if the release does not know it. wrong: what is wrong with a value that is not in
    `words`, or for which `read` raises a ValueError.
    """

    name: str
    option: str
    when: Values = field(default_factory=dict)
    _: KW_ONLY
    words: Values = field(default_factory=dict)
    write: Callable[[Any, Any], object] = lambda value, model: value
    read: Callable[[Any, Any], object] = lambda value, out: value
    default: object = None
    also: tuple[str, ...] = ()
    since: str = ""
    until: str = ""
    why: str = ""
    optional: bool = False
    wrong: str = ""

    def write_to(self, out: Writer, model: object) -> None:
        """Add the option for the model's field to `out`; nothing for None, False, the default, or one not in `words`.

        In a release without the option refuse the field if `why` is given, and add nothing if it is `optional`.
        """
        value = value_of(model, self.name)
        written = self.words.get(value) if self.words else self.write(value, model)
        if written is None or written is False or (self.default is not None and value == self.default):
            return
        heeded, known = self._in_force(out.table), out.table.known(self.option)
        if heeded and (known or not (self.why or self.optional)):
            out.put(self.option, *(written if isinstance(written, tuple) else (written,)))
        elif self.why:
            got = pattern(value) if isinstance(value, tuple) else None if value is True else value
            name, since = self.name.removeprefix("best.configuration."), self.since or first_with(self.option)
            out.refuse(name, self.why, got, since=since)

    def read_from(self, out: Reader) -> None:
        """Set the field in `out` to what `words` or `read` makes of the option's value; if that is None, to `default`.

        The field is not set if it is OPEN. Nothing is done for a link without a field, or in releases outside of
        `since` and `until`. A malformed option is refused in `out`. `when` is not checked.
        """
        if not self.name or not self._in_force(out.args.table):
            return
        dests = destinations(self.option)
        given = out.args.value(*dests)
        try:
            value = self._word(given) if self.words else self.read(given, out)
        except ValueError as error:
            out.refuse(self.wrong, *dests, got=given, need=str(error))
            return
        if value is not OPEN:
            out.put(self.name, self.default if value is None else value, *dests, *self.also)

    def _word(self, given: object) -> object:
        """Return the field's value for an option's value by `words`; None if it is not there.

        Raises ValueError with the known words for a given option if the link has a text for `wrong` values.
        """
        for value, word in self.words.items():
            if word == given:
                return value
        if self.wrong and given is not None:
            raise ValueError(" or ".join(self.words.values()))
        return None

    def _in_force(self, table: FlagTable) -> bool:
        """Return whether this release is within `since` and `until`."""
        return (not self.since or table.at_least(self.since)) and not (self.until and table.at_least(self.until))


@dataclass(frozen=True, slots=True)
class Only:
    """A field for which the program supports only these values; others are refused.

    about: the field to name in the refusal, if another. edit: a change of the program's code that supports the value.
    since: the first release to which it applies. dests: the destinations from which the first value is read; None: it
    is not read.
    """

    name: str
    values: tuple[object, ...]
    when: Values
    why: str
    _: KW_ONLY
    about: str = ""
    edit: str | None = None
    since: str = ""
    dests: tuple[str, ...] | None = None

    def write_to(self, out: Writer, model: object) -> None:
        value = value_of(model, self.name)
        if value not in self.values and (not self.since or out.table.at_least(self.since)):
            edit = None if self.edit is None or value is None else self.edit.format(value)
            out.refuse(self.about or self.name, self.why, value, edit=edit)

    def read_from(self, out: Reader) -> None:
        if self.dests is not None and (not self.since or out.args.table.at_least(self.since)):
            out.put(self.name, self.values[0], *self.dests)


def write(links: Iterable[Link | Only], out: Writer, model: object) -> None:
    """Add to `out` the options, or refusals, of all links whose conditions `when` the model (or plan) meets."""
    for link in links:
        if all(value_of(model, name) == value for name, value in link.when.items()):
            link.write_to(out, model)


def read(links: Iterable[Link | Only], out: Reader) -> None:
    """Set in `out` the fields, or refusals, of all links whose conditions `when` hold of the fields read so far."""
    for link in links:
        if all(out.get(name) == value for name, value in link.when.items()):
            link.read_from(out)


def value_of(model: Any, field: str) -> Any:
    """Return an attribute by dotted path; None as soon as one part is missing."""
    for part in field.split("."):
        model = getattr(model, part, None)
    return model


@cache
def destinations(option: str) -> tuple[str, ...]:
    """Return the parser's destinations of an option over all releases, newest first; () for an unknown option."""
    return tuple(dict.fromkeys(flags(version).flags[option].dest for version in reversed(versions_with(option))))

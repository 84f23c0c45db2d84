"""A cluster as the difference from another one, and a person's own numbers as the quantities of a descriptor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from pydantic import BaseModel

from symconfig.descriptor.amounts import (
    PEAK,
    SIZE,
    SPAN,
    SPEED,
    Kind,
    amount,
    gpu_bytes_per_s,
    oversubscription,
    says_direction,
)
from symconfig.descriptor.cluster import (
    NETWORK,
    ClusterDescriptor,
    Kernels,
    Level,
    Precisions,
    Quantity,
    merged,
    with_gpus_per_node,
)
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.strict import section, validate
from symconfig.errors import UNKNOWN_FIELD, InputError, Problem, nearest

# Relative standard deviation of a number that is given without one. What a data sheet prints is taken as it is; what
# only a run shows varies among the zoo's fitted constants by 3 to 40 %, of which this is about the middle.
PRINTED, MEASURED = 0.0, 0.1
_MEASURED = frozenset({"latency_s", "context_bytes", "launching", "clock", *Kernels.model_fields})


def given_in(file: str) -> str:
    """Return the text for the source of a number in a user's own file."""
    return f"given by the user in {file}"


@dataclass(slots=True)
class Given:
    """A converter of a document's numbers to quantities.

    source: the source of numbers that state none. problems: those of unreadable amounts, appended as they are found.
    """

    document: Document
    source: str
    problems: list[Problem] = field(default_factory=list)

    def section(self, value: Any, model: type[BaseModel], path: KeyPath = ()) -> Any:
        """Return a section (or list of them) with the value of each field of type `Quantity` in `model` as a quantity
        (a dict); other fields, their numbers too, stay as they are.

        Unknown names and values that are no section, number or amount stay, for the descriptor to refuse. An amount
        that cannot be read becomes None and is added to `problems`. path: of the section in the document.
        """
        if isinstance(value, list):
            return [self.section(item, model, (*path, index)) for index, item in enumerate(value)]
        if model is Quantity:
            return self.quantity(value, str(path[-1]), path, model)
        if not isinstance(value, dict):
            return value
        inner = {info.alias or name: section(info.annotation) for name, info in model.model_fields.items()}
        return {
            name: item
            if (kind := inner.get(name)) is None
            else self.quantity(item, name, (*path, name), model)
            if kind is Quantity
            else self.section(item, kind, (*path, name))
            for name, item in value.items()
        }

    def quantity(self, value: Any, name: str, path: KeyPath, owner: type[BaseModel]) -> Any:
        """Return a field's number as a dict of value, source and uncertainty; other keys of a stated dict are kept.

        value: a number, an amount as text, or a dict with one under `value`. Text is converted to SI units; None, with
        a problem recorded, if it cannot be read. `self.source` and the field's usual uncertainty (MEASURED of what only
        a measurement gives, else PRINTED) are set only if no source is stated. What has no number, and a bool, is
        returned unchanged, for the descriptor to refuse.
        """
        whole = value if isinstance(value, dict) else {"value": value}
        number = whole.get("value")
        if isinstance(number, str):
            number = self.amount(number, _kind(name, owner), (*path, "value") if whole is value else path)
            if number is None:
                return None
        if "value" not in whole or isinstance(number, bool) or not isinstance(number, int | float):
            return value
        usual = {"source": self.source, "uncertainty": MEASURED if name in _MEASURED else PRINTED}
        return {**({} if "source" in whole else usual), **whole, "value": number}

    def amount(self, text: object, kind: Kind | None, path: KeyPath) -> float | None:
        """Return an amount's number in SI units; None, with a problem recorded, if it is no text that can be read.

        kind: the units that the field takes; None: it takes a plain number only, so text is a problem.
        """
        what = "wrong value" if kind is None else "has no unit"
        try:
            if kind is not None and isinstance(text, str):
                return amount(text, kind)
        except ValueError as error:
            what = str(error)
        self.wrong(what, path, text, "a number" if kind is None else kind.need)
        return None

    def wrong(self, what: str, path: KeyPath, got: object, need: str | None, hint: str | None = None) -> None:
        """Record a problem with a value."""
        shown = "null" if got is None else shorten(got)
        self.problems.append(self.document.problem(what, path, got=shown, need=need, hint=hint))

    def wrong_key(self, what: str, path: KeyPath, need: str | None = None, hint: str | None = None) -> None:
        """Record a problem with a field itself."""
        self.problems.append(self.document.problem(what, path, of_key=True, need=need, hint=hint))


def _kind(name: str, owner: type[BaseModel]) -> Kind | None:
    """Return the units that a field takes, by its class and the suffix of its name; None if it has no unit."""
    if owner is Precisions:
        return PEAK
    ends = {"_bytes_per_s": SPEED, "_bytes": SIZE, "_s": SPAN}
    return next((kind for end, kind in ends.items() if name.endswith(end)), None)


def quantified(document: Document, model: type[BaseModel], source: str) -> Document:
    """Return a copy of the document with its numbers as quantities; `unread` gains those that cannot be read.

    model: the class whose fields the document has. source: the source of numbers that state none.
    """
    given = Given(document, source)
    data = given.section(document.data, model)
    return replace(document, data=data, unread=(*document.unread, *given.problems))


SCHEMA = "symconfig.cluster/1"
# What people call a field, and where the descriptor has it.
AMOUNTS: Mapping[str, tuple[str, str]] = {
    "gpu_memory": ("gpu", "memory_bytes"),
    "gpu_memory_bandwidth": ("gpu", "memory_bandwidth_bytes_per_s"),
    "host_memory": ("host", "memory_bytes"),
    "host_link": ("host", "link_bytes_per_s"),
}
LINKS = ("nvlink", "pcie", "xgmi", "hccs")  # levels within a node, by whose name their speed is given
SHORT = ("network", *LINKS, *AMOUNTS)
FIELDS = frozenset({*SHORT, *(name for name in ClusterDescriptor.model_fields if name != "schema_"), "schema", "base"})


@dataclass(slots=True, kw_only=True)
class _Changes(Given):
    """The state of reading a document of changes.

    fields: what is still to be merged into the base. places: the document's path of a cluster field given by a short
    name.
    """

    base: ClusterDescriptor
    fields: dict[str, Any]
    places: dict[KeyPath, KeyPath] = field(default_factory=dict)


def changed(
    base: ClusterDescriptor, document: Document, name: str, given: str, kernels: Kernels | None = None
) -> ClusterDescriptor:
    """Return the base cluster with the document's fields in place of its own, validated, without the base's aliases.

    Raises InputError with all problems at the document's lines: unknown fields, amounts that cannot be read, a field
    given by two names, and what the descriptor refuses. Its source names that of the document and, for the rest, the
    base's.

    Args:
        base: The cluster to change.
        document: The fields, by the descriptor's names and the short ones (SHORT); levels by name, null to delete one.
        name: The new name, where the document states none.
        given: The source of numbers, where the document states none.
        kernels: The constants of the file that the document names as its `kernels`; None: the base's, changed by it.
    """
    data = document.data
    own, replaced = data.get("source"), () if kernels is None else ("kernels",)
    changes = _Changes(
        document=document,
        source=own if isinstance(own, str) else given,
        base=base,
        fields={name: value for name, value in data.items() if name not in ("schema", "base", *replaced)},
    )
    for unknown in [one for one in changes.fields if one not in FIELDS]:
        hint = nearest(unknown, FIELDS)
        need = None if hint else f"one of {', '.join(sorted(FIELDS - {'schema', 'base'}))}"
        changes.wrong_key(UNKNOWN_FIELD, (unknown,), need=need, hint=hint)
        del changes.fields[unknown]
    for short in AMOUNTS.keys() & changes.fields.keys():
        _amount(changes, short, changes.fields.pop(short))
    fields = base.model_dump(mode="json", by_alias=True, exclude_unset=True)
    fields |= {"schema": data.get("schema", SCHEMA), "name": name, "source": given, "aliases": []}
    if kernels is not None:
        fields["kernels"] = kernels.model_dump(mode="json", exclude_unset=True)
    fields["levels"] = _levels(changes, fields["levels"])
    fields = merged(fields, changes.section(changes.fields, ClusterDescriptor))
    if isinstance(fields["source"], str):
        fields["source"] = f"{fields['source']}; what that leaves as it was: {base.source}"
    unread = (*document.unread, *changes.problems)
    try:
        return validate(Document(fields, document.file, *_cluster_places(changes), unread), ClusterDescriptor)
    except InputError as error:
        called = {f"levels[{i}]": f"levels.{level.get('name')}" for i, level in enumerate(fields["levels"])}
        problems = []
        for one in error.problems:
            head, bracket, rest = (one.field or "").partition("]")
            at = None if one in unread else called.get(head + bracket)
            problems.append(one if at is None else replace(one, field=at + rest))
        raise InputError(problems) from None


def _amount(changes: _Changes, name: str, value: Any) -> None:
    """Set the descriptor's field of a short name to its amount in SI units in `changes.fields`, and record its place.

    Nothing is set, and a problem recorded, for a value that cannot be read and a field that is stated itself, too.
    """
    above, last = path = AMOUNTS[name]
    section = changes.fields.get(above, {})
    if not isinstance(section, dict):
        return  # refused as a section
    if last in section:
        changes.wrong_key(f"sets the same as {above}.{last}", (name,), hint="one of them")
    elif (number := changes.amount(value, _kind(last, ClusterDescriptor), (name,))) is not None:
        changes.fields[above] = {**section, last: number}
        changes.places[path] = (name,)


def _levels(changes: _Changes, of_base: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the base's levels with, in this order, GPUs per node, the document's levels (`_put_level`, by name) and
    the speeds of links and network (`_speed`) applied.

    of_base: dicts of Level's fields, which may be changed in place. All that is applied is taken out of
    `changes.fields`, except GPUs per node.
    """
    gpus = changes.fields.get("gpus_per_node")
    node = gpus if type(gpus) is int and gpus > 0 else changes.base.gpus_per_node
    levels = with_gpus_per_node(of_base, changes.base.gpus_per_node, node, changes.source)
    stated = changes.fields.pop("levels", None)
    stated = {} if stated is None else stated
    if not isinstance(stated, dict):
        changes.wrong("wrong value", ("levels",), stated, "a section of `level: fields`")
        stated = {}
    for name, value in stated.items():
        _put_level(changes, levels, name, changes.section(value, Level, ("levels", name)))
    for name in [one for one in ("network", *LINKS) if one in changes.fields]:
        _speed(changes, levels, node, name, changes.fields.pop(name), stated)
    changes.places |= {("levels", i): ("levels", each["name"]) for i, each in enumerate(levels)
                       if isinstance(stated.get(each["name"]), dict)}  # fmt: skip
    return levels


def _put_level(changes: _Changes, levels: list[dict[str, Any]], name: str, value: Any) -> None:
    """Merge a level into `levels` in place: null deletes it; a new name is inserted before the first larger level.

    A new level without a size comes before the one of size None. Deleting an unknown level and a value that is no
    section are recorded as problems.
    """
    here = next((index for index, each in enumerate(levels) if each["name"] == name), None)
    if value is None and here is None:
        need = f"one of {', '.join(each['name'] for each in levels)}"
        changes.wrong_key("the base has no such level", ("levels", name), need=need)
    elif value is None and here is not None:
        del levels[here]
    elif not isinstance(value, dict):
        changes.wrong("wrong value", ("levels", name), value, "the fields of a level, or null for none")
    elif here is not None:
        levels[here] = {**merged(levels[here], value), "name": name}
    else:
        own = value["size"] if isinstance(value.get("size"), int) else inf
        later = (i for i, each in enumerate(levels) if not isinstance(each["size"], int) or each["size"] > own)
        levels.insert(next(later, len(levels)), {**value, "name": name})


def _cluster_places(changes: _Changes) -> tuple[dict[KeyPath, Any], dict[KeyPath, Any]]:
    """Return the places of the document's keys and of its values, by the paths of the cluster that it changes.

    `changes.places` has the document's path of each cluster path that differs; paths inside the document's `levels` are
    only kept under their index.
    """

    def moved(places: Mapping[KeyPath, Any]) -> dict[KeyPath, Any]:
        kept = {path: place for path, place in places.items() if path[:1] != ("levels",) or len(path) == 1}
        for there, here in changes.places.items():
            kept |= {(*there, *path[len(here):]): place for path, place in places.items()
                      if path[: len(here)] == here}  # fmt: skip
        return kept

    return moved(changes.document.keys), moved(changes.document.values)


def _speed(
    changes: _Changes, levels: list[dict[str, Any]], node: int, name: str, text: Any, stated: Mapping[str, Any]
) -> None:
    """Set in place the bandwidth of the levels of a short name, `network` or a link, and a stated oversubscription.

    `network` sets all network levels, and its oversubscription the last level; the speed of a link is that of one GPU
    unless said otherwise. node: GPUs of one. stated: levels of the document. Recorded as problems, which set nothing,
    are speeds that cannot be read or that a level states itself, levels that are missing, and a link's speed that is
    twice the present one's without a direction, as data sheets add both up.
    """
    base, network = changes.base.name, name == "network"
    mine = [level for level in levels if level["name"] in (NETWORK if network else (name,))]
    if not isinstance(text, str):
        need = "ports and their speed as 4x200Gb/s" if network else "a speed as 300GB/s"
        return changes.wrong("has no unit", (name,), text, need)
    if not mine:
        inner = ", ".join(level["name"] for level in levels if level["name"] in LINKS)
        links = f"one of its links: {inner}" if inner else "a field of it"
        need = f"a base with a level {' or '.join(sorted(NETWORK))}" if network else links
        return changes.wrong(
            f"{base} has no {'network between nodes' if network else 'such link'}", (name,), text, need=need
        )
    for level in mine:
        own = stated.get(level["name"])
        if isinstance(own, dict) and "bandwidth_bytes_per_s" in own:
            what = f"sets the same as levels.{level['name']}.bandwidth_bytes_per_s"
            return changes.wrong_key(what, (name,), hint="one of them")
    try:
        rate = gpu_bytes_per_s(text, node, None if network else "gpu")
        ratio = oversubscription(text) if network else None
    except InputError as error:
        one = error.problems[0]
        of_gpu = "a speed of one GPU as 300GB/s"
        return changes.wrong(one.what, (name,), one.got, *((one.need, one.hint) if network else (of_gpu,)))
    if not network and not says_direction(text) and rate == 2 * mine[0]["bandwidth_bytes_per_s"]["value"]:
        what = f"is twice {base}'s {rate / 2e9:g} GB/s in one direction; data sheets add both directions up"
        return changes.wrong(
            what, (name,), text, need="the direction", hint=f"{text} both directions, or {text} one direction"
        )
    for level in mine:
        level["bandwidth_bytes_per_s"] = {"value": rate, "source": f"{changes.source}: {text}"}
    if ratio is not None:
        levels[-1]["oversubscription"] = {"value": ratio, "source": f"{changes.source}: {text}"}
    return None

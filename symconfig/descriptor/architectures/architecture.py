"""How the `config.json` of one architecture is read and written: a table, and rules for what no table holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from symconfig.descriptor.architectures.keys import NAMES, RULED, alternatives, facts, idle_unless_read, pairs
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem

Values = Mapping[str, Any]  # config.json's values by key, with the class's defaults
LayerTypes = Callable[[Values, int], Sequence[str]]  # of the values and the number of layers
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED = "indexed_attention"
LINEAR = "linear_attention"  # any block in attention's place
# Spellings of before transformers 5 (remap_legacy_layer_types), and in files that others wrote.
OLDER_TYPES = {"attention": FULL, "mamba": LINEAR, "deepseek_sparse_attention": INDEXED}


@dataclass(frozen=True, slots=True)
class Size:
    """A size that is computed from keys, not copied from one.

    keys: the keys that it reads. of: returns the size, from a file's values. write: returns the keys, from the model
    and the size; None: the size is written to the first key.
    """

    keys: tuple[str, ...]
    of: Callable[[Values], Any]
    write: Callable[[ModelDescriptor, int], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True)
class Block:
    """A block in place of attention, or beside it, with the keys of its sizes and switches.

    sizes: a key or `Size` for each name. switches: a key for each name; "" means that the switch is always on.
    """

    name: str
    sizes: Mapping[str, str | Size] = field(default_factory=dict)
    switches: Mapping[str, str] = field(default_factory=dict)
    beside_attention: bool = False

    @property
    def keys(self) -> tuple[str, ...]:
        """Return all config.json keys that its sizes and switches are read from; a key may occur twice."""
        sizes = (size.keys if isinstance(size, Size) else (size,) for size in self.sizes.values())
        return (*(key for keys in sizes for key in keys), *filter(None, self.switches.values()))

    def mixer(self, values: Values) -> dict[str, Any]:
        """Return the descriptor's mixer as a dict: block, sizes by name, names of active switches, beside_attention.

        `sizes` and `switches` are left out where the block has none, beside_attention where it is false. A switch is
        active if it has no key or its key's value is true. Raises KeyError for a size's key that `values` lacks.
        """
        made: dict[str, Any] = {"block": self.name}
        if self.sizes:
            made["sizes"] = {
                name: size.of(values) if isinstance(size, Size) else values[size] for name, size in self.sizes.items()
            }
        if self.switches:
            made["switches"] = [name for name, key in self.switches.items() if not key or values.get(key)]
        return made | ({"beside_attention": True} if self.beside_attention else {})

    def write(self, model: ModelDescriptor) -> dict[str, Any]:
        """Return the config.json keys of the model's first mixer of this kind; empty if it has none.

        A size gives its key, a `Size` what its `write` returns or, without that, its first key; a switch with a key, a
        bool.
        """
        mixer = next((mixer for mixer in model.mixers if mixer.block == self.name), None)
        if mixer is None:
            return {}
        keys: dict[str, Any] = {}
        for name, size in self.sizes.items():
            if isinstance(size, Size) and size.write is not None:
                keys |= size.write(model, mixer.sizes[name])
            else:
                keys[size.keys[0] if isinstance(size, Size) else size] = mixer.sizes[name]
        return keys | {key: name in mixer.switches for name, key in self.switches.items() if key}


def named(sizes: str, keys: str = "") -> dict[str, str | Size]:
    """Return a dict from the names of sizes to their keys, both as words in one order; keys default to the names.

    Raises ValueError for different numbers of words.
    """
    return dict(zip(sizes.split(), (keys or sizes).split(), strict=True))


class Reading:
    """One `config.json` while it is read; rules change `fields`, `key_of`, `problems` and `notes` in place.

    data: the file's keys, aliases resolved, nested ones as `section.key`. values: the keys that are read, with the
    class's defaults filled in. fields: the descriptor's fields by dotted name. key_of: the key that a field came from.
    """

    def __init__(
        self, data: Mapping[str, Any], architecture: Architecture, document: Document, prefix: KeyPath
    ) -> None:
        """Start with no problems, notes, values and fields; `data` is copied, its keys as text."""
        self.architecture, self.document, self.prefix = architecture, document, prefix
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        self.key_of: dict[str, str] = {}
        self.values: dict[str, Any] = {}
        self.fields: dict[str, Any] = {}
        self.data = {str(key): value for key, value in data.items()}

    def problem(self, what: str, key: str, *more: str | int, got: object = None, need: str | None = None) -> None:
        """Append a problem at a key to `problems`; `more` is the path inside the key's value.

        `got` is shortened; None leaves it out.
        """
        shown = None if got is None else shorten(got)
        self.problems.append(self.document.problem(what, (*self.path(key), *more), got=shown, need=need))

    def check_keys(
        self, values: Values, only: Mapping[str, tuple[Any, ...]], known: Collection[str], of: str, part: str
    ) -> list[str]:
        """Return the unknown keys of `values` that are null or false; append a problem for each other unknown key, and
        for each value that `only` does not list for its key.

        Keys that are `idle_unless_read` count as known. of, part: what does not support a value, and what an unknown
        key may change, in the problems.
        """
        unset = []
        for key, value in values.items():
            if key in only:
                if value not in only[key]:
                    need = " or ".join(map(repr, only[key]))
                    self.problem(f"not supported for {of}", key, got=repr(value), need=need)
            elif key not in known and not idle_unless_read(key):
                if value is None or value is False:
                    unset.append(key)
                    continue
                what, hint = (
                    f"this key is not known and may change the {part}",
                    "remove it if it has no effect on the model",
                )
                place = self.path(key)
                self.problems.append(self.document.problem(what, place, of_key=True, got=shorten(value), hint=hint))
        return unset

    def path(self, key: str) -> KeyPath:
        """Return the key's path in the file: `prefix` and the key; `section.key` is two parts if the architecture has
        the section.
        """
        inner = key.split(".") if key.partition(".")[0] in self.architecture.sections else (key,)
        return (*self.prefix, *inner)


@dataclass(frozen=True, slots=True)
class Rule:
    """A mapping between a few config.json keys and descriptor fields that a table cannot express, in both directions.

    read: sets fields of a Reading. keys: the keys that it reads, as words. write: returns the keys of a model; None:
    the rule writes none.
    """

    read: Callable[[Reading], None]
    keys: str = ""
    write: Callable[[ModelDescriptor], Mapping[str, Any]] | None = None


def link(
    key: str,
    fields: str,
    read: Callable[[Any, Reading], object],
    write: Callable[[ModelDescriptor], object] = lambda model: None,
    what: str = "wrong value",
) -> Rule:
    """Return a rule that reads one key into all of `fields` (words) and writes the key back.

    Args:
        read: Returns the value that each field gets; None leaves the fields unchanged. Raises ValueError with the need,
            which becomes a problem at the key. Gets the key's value (or its default) and the Reading.
        write: Returns the key's value for a model; None leaves the key out, which is the default.
        what: Text of the problem where `read` raises.
    """

    def fill_in(reader: Reading) -> None:
        """Set the fields and their `key_of` to what `read` returns.

        Its None sets nothing; its ValueError becomes a problem at the key.
        """
        given = reader.values[key]
        try:
            value = read(given, reader)
        except ValueError as error:
            return reader.problem(what, key, got=repr(given), need=str(error))
        for name in fields.split() if value is not None else ():
            reader.fields[name] = value
            reader.key_of[name] = key

    def keys_of(model: ModelDescriptor) -> dict[str, Any]:
        value = write(model)
        return {} if value is None else {key: value}

    return Rule(fill_in, key, keys_of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A table by which one `model_type` is read and written.

    Left-hand keys are config.json's, right-hand names the descriptor's fields.

    constants: fields that the class fixes. defaults: keys of the class with their defaults; Transformers' own are added
    below these. types: types of keys whose default does not show them, or KINDS. names: fields that a key sets, if not
    as in NAMES. only: the values of a key that are supported; keys of the class that set nothing may only have their
    default. noted: notes for keys that are left out, if set. ignored: keys without effect on the trained model.
    same_as: aliases of keys. layers: returns each layer's type, where the file does not list them. blocks: the mixer of
    each type of layer. rules: applied in order. reads: keys that `layers`, blocks and rules read. may_be_zero: keys of
    which 0 means none. groups_with: the topk_method with which n_group and topk_group apply. text_of: (section, type)
    of the text model in a multimodal file. of_class: the model_type whose class is used, if it has none of its own.
    known_layers: types of layers that files may list, beside those of `blocks`.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    noted: Mapping[str, str] = field(default_factory=dict)
    ignored: Collection[str] = ()
    same_as: Mapping[str, str] = field(default_factory=dict)
    layers: LayerTypes | None = None
    blocks: Mapping[str, Block] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    reads: Sequence[str] = ()
    may_be_zero: Collection[str] = ()
    groups_with: str | None = None
    text_of: tuple[str, str] | None = None
    of_class: str | None = None
    known_layers: tuple[str, ...] = (FULL, SLIDING, CHUNKED)

    @property
    def sections(self) -> frozenset[str]:
        """Return the names of the file's nested objects whose keys this table has as `section.key`."""
        keys = (*self.defaults, *self.only, *self.ignored, *self.same_as)
        return frozenset(key.partition(".")[0] for key in keys if "." in key)

    def fields_of(self, key: str) -> tuple[str, ...]:
        """Return the descriptor fields that a key's value is copied to: empty for an ignored key, else those of
        `names`.

        Of a key not in `names`: empty if a rule reads it (RULED, `reads`); else those of NAMES, or the field of the
        key's name, if there is one.
        """
        if key in self.ignored:
            return ()
        own = self.names.get(key)
        if own is not None or key in RULED or key in self.reads:
            return own or ()
        return NAMES.get(key) or ((key,) if key in ModelDescriptor.model_fields else ())

    def usual_layers(self, values: Values, layers: int) -> list[str]:
        """Return each layer's type where the file does not list them: by `layers`, all full without it.

        All are full, too, if `values` has use_sliding_window false, unless the family has blocks.
        """
        if self.layers is None or (values.get("use_sliding_window") is False and not self.blocks):
            return [FULL] * layers
        return list(self.layers(values, layers))

    def is_read(self, key: str) -> bool:
        """Return whether a key sets a field or is read by a rule; any other key may only have its class's default."""
        return key in RULED or key in self.reads or bool(self.fields_of(key))


_NAMED: Mapping[str, Callable[[str], Any]] = {
    **dict.fromkeys(("constants", "defaults"), facts),
    **dict.fromkeys(("types", "same_as"), pairs),
    **dict.fromkeys(("ignored", "reads", "may_be_zero"), str.split),
    "names": lambda text: {key: tuple(filter(None, value.split(","))) for key, value in pairs(text).items()},
    "only": alternatives,
}


def family(constants: str = "", **fields: Any) -> Architecture:
    """Return an Architecture from its fields, of which those in _NAMED may be text: words `key=value`, a key alone
    meaning true; `ignored`, `reads` and `may_be_zero` are lists of words.

    Values of constants, defaults and `only` are JSON, names of `Derived`, or text; the others are text. `a|b` are
    alternatives in `only`, `field,field` several fields in `names`.
    """
    fields["constants"] = constants
    parsed = {name: read(fields[name]) for name, read in _NAMED.items() if isinstance(fields.get(name), str)}
    return Architecture(**fields | parsed)

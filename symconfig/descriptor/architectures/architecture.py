"""How the `config.json` of one architecture is read."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from symconfig.descriptor.architectures.mixer_keys import Block
    from symconfig.descriptor.model import ModelDescriptor

Values = Mapping[str, Any]  # config.json's values by key, with the class's defaults
FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"
INDEXED = "indexed_attention"
LINEAR = "linear_attention"  # any block in attention's place
# Spellings of before transformers 5 (remap_legacy_layer_types), and in files that others wrote.
OLDER_TYPES = {"attention": FULL, "mamba": LINEAR, "deepseek_sparse_attention": INDEXED}


class Derived(Enum):
    """Defaults that follow from other keys."""

    HEADS = "num_attention_heads"
    HEAD_DIM = "hidden_size / num_attention_heads"
    FOUR_TIMES_HIDDEN = "4 x hidden_size"
    LAYERS = "as many as layer_types or hybrid_override_pattern lists"


class Kind(Enum):
    """A restriction of a key's values that its default does not show."""

    COUNT = "a whole number > 0, or nothing"
    LAYERS = "a list of layers, or nothing"
    WORDS = "a list of words, or nothing"
    SECTION = "an object, or nothing"
    NUMBER = "a number of any sign"

    def fits(self, value: Any) -> bool:
        """Return whether a value that is not the default is of this kind."""
        if self is Kind.COUNT:
            return type(value) is int and 0 < value < 2**63
        if self is Kind.NUMBER:
            return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63
        if self is Kind.LAYERS:
            return isinstance(value, list) and all(type(item) is int for item in value)
        if self is Kind.WORDS:
            return isinstance(value, list) and bool(value) and all(isinstance(item, str) for item in value)
        return isinstance(value, Mapping)


class Reading(Protocol):
    """The inputs of a rule: the values, the fields that it fills in, and the list of problems.

    data: the file as it is, in one spelling. key_of: the key that a field came from.
    """

    values: dict[str, Any]
    fields: dict[str, Any]
    data: dict[str, Any]
    key_of: dict[str, str]
    architecture: Architecture

    def problem(self, what: str, key: str, *more: str | int, got: object = None, need: str | None = None) -> None: ...

    def note(self, sentence: str) -> None: ...

    def derive(self, value: Any, values: Values) -> Any: ...


@dataclass(frozen=True, slots=True)
class Rule:
    """What a class makes of a few keys where no table of names can hold it, in both directions.

    read: fills in fields. keys: that it reads. write: the inverse; without it no field follows from the keys alone.
    """

    read: Callable[[Reading], None]
    keys: Collection[str] = ()
    write: Callable[[ModelDescriptor], Mapping[str, Any]] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """A table by which one `model_type` is read. Keys on the left are config.json's, names on the right the
    descriptor's.

    constants: descriptor's fields that the class fixes. defaults: the keys of its class with their defaults, from
    transformers' own class where there is one; those given here come on top. types: of keys whose default does not say
    it. names: where a key goes, if not as in NAMES. only: understood with these values only (a key of the class that
    goes nowhere is understood with its default only). noted: left out with a note, when set. ignored: without effect on
    the trained model. same_as: a second spelling of another key. layers: the type of each layer, where the file does
    not list them. blocks: a type of layer, and the mixer that such layers have. rules: what no table holds, one after
    the other. reads: keys that `layers` reads, and in the end all that the blocks and the rules do.
    gate_and_up_in_one: intermediate_size counts both halves of the gated MLP. groups_with: n_group and topk_group apply
    with this topk_method only. text_of: the model is this section of the file, of this type. of_class: the
    model_type whose class it is, where its own has none. known_layers: types of layers, if not the usual ones. kinds:
    of keys whose default is null or text, and that hold something else. may_be_zero: keys that say by 0 that there is
    none.
    """

    constants: Mapping[str, Any] = field(default_factory=dict)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    types: Mapping[str, str] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    only: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    noted: Mapping[str, str] = field(default_factory=dict)
    ignored: Collection[str] = ()
    same_as: Mapping[str, str] = field(default_factory=dict)
    layers: Callable[[Values, int], Sequence[str]] | None = None
    blocks: Mapping[str, Block] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    reads: tuple[str, ...] = ()
    kinds: Mapping[str, Kind] = field(default_factory=dict)
    may_be_zero: tuple[str, ...] = ()
    gate_and_up_in_one: bool = False
    groups_with: str | None = None
    text_of: tuple[str, str] | None = None
    of_class: str | None = None
    known_layers: tuple[str, ...] = (FULL, SLIDING, CHUNKED)

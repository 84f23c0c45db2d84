"""What options say of a model: read by destination, gathered by field of the descriptor, with where each comes from."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.existing.launch.text import Place, problem_at
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Assumed
from symconfig.formats.links import value_of
from symconfig.frameworks.megatron.flags import FlagTable, Value, defaults, flags, option, versions

_SHAPE = ("num_layers", "hidden_size", "num_attention_heads")


class Args:
    """Options by destination: a `Namespace`, or a mapping that Megatron printed, in which everything counts as given.

    Several destinations are one argument's names in several versions.
    """

    def __init__(self, names: Mapping[str, Value]) -> None:
        self._names = names
        self._options = names if isinstance(names, Namespace) else None
        self.table: FlagTable = names.table if isinstance(names, Namespace) else flags(_printed_by(names))

    def given(self, *dests: str) -> bool:
        """Tell whether one of them is given, rather than left at its default."""
        if self._options is not None:
            return any(self._options.given(dest) for dest in dests)
        return any(self._names.get(dest) is not None for dest in dests)

    def known(self, dest: str) -> bool:
        """Tell whether its value is known, given or not."""
        return self._options is None or dest not in self._options.dark

    def value(self, *dests: str) -> Value:
        """Return the first that is given, else the first default."""
        for dest in dests:
            if self.given(dest):
                return self._names[dest]
        preset = defaults(self.table.version)
        return next((preset[dest] for dest in dests if preset.get(dest) is not None), None)

    def whole(self, *dests: str) -> int | None:
        """Return a whole number; None where there is none."""
        value = self.value(*dests)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def number(self, otherwise: float, *dests: str) -> float:
        value = self.value(*dests)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else otherwise

    def switch(self, *dests: str) -> bool:
        return bool(self.value(*dests))

    def word(self, *dests: str) -> str:
        """Return text; empty where there is none."""
        value = self.value(*dests)
        return "" if value is None else str(value)

    def words(self, *dests: str) -> tuple[str, ...]:
        """Return the words of an argument that takes one value or several, by version; a printed list is text."""
        value = self.value(*dests)
        if isinstance(value, tuple):
            return tuple(map(str, value))
        return tuple(part.strip(" '\"") for part in self.word(*dests).strip("[]").split(",") if part.strip())

    def place(self, *dests: str) -> Place | None:
        return None if self._options is None else self._options.place(*dests)

    def option(self, dest: str) -> str:
        """Return how the file spells it where it is given, else the option that would say it, or its opposite."""
        setting = None if self._options is None else self._options.setting(dest)
        if setting is not None:
            return setting.spelled
        if self._options is None:
            return dest  # a printed namespace has no options
        for value in (True, False):
            with suppress(KeyError):
                return option(self.table, dest, value)
        return "--" + dest.replace("_", "-")

    def problem(
        self, what: str, *dests: str, got: object = None, need: str | None = None, hint: str | None = None
    ) -> Problem:
        """Return a problem about the first of these that is given, where it stands, else about the first."""
        dest = next((dest for dest in dests if self.given(dest)), dests[0])
        text = None if got is None else str(got)[:80]
        return problem_at(self.place(dest), what, field=self.option(dest), need=need, hint=hint, got=text)


def _printed_by(names: Mapping[str, Value]) -> str:
    """Return the version whose arguments these are: it has most of them, and the fewest beside them."""
    known = {version: defaults(version).keys() for version in versions()}
    return max(versions(), key=lambda version: (len(known[version] & names.keys()), -len(known[version])))


class Fields:
    """Fields of a descriptor as options say them: "hidden_size", "experts.num_experts".

    base: the model that somebody names. whole: the options have a model's shape of their own, so that the parser's
    defaults hold for what they leave open; else (the overrides of a recipe) `base` does.
    """

    def __init__(self, args: Args, base: ModelDescriptor | None = None) -> None:
        self.args = args
        self.base = base
        self.whole = base is None or all(args.given(dest) for dest in _SHAPE)
        self.values: dict[str, object] = {}
        self.sources: dict[str, tuple[str, ...]] = {}
        self.problems: list[Problem] = []
        self.assumed: list[Assumed] = []
        self.parts: tuple[
            int, ...
        ] = ()  # of how many of Megatron-LM's layers each of the model's is, if a pattern says

    def put(self, field: str, value: object, *dests: str) -> None:
        """Set a field's value; None: the options have none. dests: the arguments that it is from."""
        self.sources[field] = dests
        if value is not None:
            self.values[field] = value

    def refuse(
        self, what: str, *dests: str, got: object = None, need: str | None = None, hint: str | None = None
    ) -> None:
        """Refuse what the options ask for and no descriptor has."""
        self.problems.append(self.args.problem(f"cannot be predicted: {what}", *dests, got=got, need=need, hint=hint))

    def assume(self, what: str, value: object, why: str, *dests: str) -> None:
        self.assumed.append(Assumed(what, str(value), why, self.args.place(*dests)))

    def holds(self, *dests: str) -> bool:
        """Tell whether their values count, given or by default."""
        return self.whole or self.args.given(*dests)

    def of_options(self, field: str) -> bool:
        """Tell whether what the field is from counts."""
        return self.holds(*self.sources.get(field, ()))

    @property
    def layers(self) -> int:
        """Return the layers; 0: nobody says how many."""
        if self.parts:
            return len(self.parts)
        return self.args.whole("num_layers") or (self.base.num_hidden_layers if self.base is not None else 0)

    @property
    def counted(self) -> int:
        """Return how many layers Megatron-LM counts: more than the model's where a mixer and its MLP are one each."""
        return sum(self.parts) or self.layers

    def own(self, values: tuple[bool, ...]) -> tuple[bool, ...]:
        """Return those of the first part of each of the model's layers. values: one for each that is counted."""
        if not self.parts:
            return values
        return tuple(values[sum(self.parts[:place])] for place in range(len(self.parts)))

    def get(self, field: str) -> Any:
        """Return a field's value, of the named model where the options leave it open."""
        return self.values.get(field) if self.of_options(field) else value_of(self.base, field)

    @property
    def latent(self) -> bool:
        """Tell whether attention is multi-latent."""
        return bool(self.get("attention") == "mla")

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
    """Values of Megatron-LM's arguments by destination: from a `Namespace`, or from a mapping that Megatron printed.

    In a printed mapping every value that is not None counts as given, and the version is guessed from its names.
    Methods with several destinations take the names that one argument has in several versions.
    """

    def __init__(self, names: Mapping[str, Value]) -> None:
        self._names = names
        self._options = names if isinstance(names, Namespace) else None
        self.table: FlagTable = names.table if isinstance(names, Namespace) else flags(_printed_by(names))

    def given(self, *dests: str) -> bool:
        """Return whether any of the destinations is given (printed and not None) rather than left at its default."""
        if self._options is not None:
            return any(self._options.given(dest) for dest in dests)
        return any(self._names.get(dest) is not None for dest in dests)

    def known(self, dest: str) -> bool:
        """Return whether the value can be read; False only if the given value is unknown or refused."""
        return self._options is None or dest not in self._options.dark

    def value(self, *dests: str) -> Value:
        """Return the value of the first destination that is given, else the first default that is not None.

        None if none is.
        """
        for dest in dests:
            if self.given(dest):
                return self._names[dest]
        preset = defaults(self.table.version)
        return next((preset[dest] for dest in dests if preset.get(dest) is not None), None)

    def whole(self, *dests: str) -> int | None:
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
        """Return the values, as text, of an argument that takes one or several; empty if there is none.

        A printed list such as "['a', 'b']" is split.
        """
        value = self.value(*dests)
        if isinstance(value, tuple):
            return tuple(map(str, value))
        return tuple(part.strip(" '\"") for part in self.word(*dests).strip("[]").split(",") if part.strip())

    def place(self, *dests: str) -> Place | None:
        return None if self._options is None else self._options.place(*dests)

    def option(self, dest: str) -> str:
        """Return the option as the file spells it, else the one that would set `dest` to True, or to False.

        Return `dest` itself for a printed namespace, and a name derived from it if this version has no such option.
        """
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
        """Return a problem with the place and option of the first destination that is given, else of the first one.

        `got` is converted to text and cut to 80 characters.
        """
        dest = next((dest for dest in dests if self.given(dest)), dests[0])
        text = None if got is None else str(got)[:80]
        return problem_at(self.place(dest), what, field=self.option(dest), need=need, hint=hint, got=text)


def _printed_by(names: Mapping[str, Value]) -> str:
    """Return the version that shares most argument names with `names`; of several the one with the fewest arguments."""
    known = {version: defaults(version).keys() for version in versions()}
    return max(versions(), key=lambda version: (len(known[version] & names.keys()), -len(known[version])))


class Fields:
    """Fields of a model descriptor as the options set them, by dotted name: "hidden_size", "experts.num_experts".

    `base` is the model that the user names. `whole` is true if the options give a shape of their own or no model is
    named: then the parser's defaults fill the fields left open, otherwise `base` does. Problems and assumptions are
    collected.
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
        """Record a field's value and the arguments `dests` that it comes from.

        If it is None only the arguments are recorded.
        """
        self.sources[field] = dests
        if value is not None:
            self.values[field] = value

    def refuse(
        self, what: str, *dests: str, got: object = None, need: str | None = None, hint: str | None = None
    ) -> None:
        """Append the problem "cannot be predicted: ..." about `dests` to `problems`; raises nothing."""
        self.problems.append(self.args.problem(f"cannot be predicted: {what}", *dests, got=got, need=need, hint=hint))

    def assume(self, what: str, value: object, why: str, *dests: str) -> None:
        self.assumed.append(Assumed(what, str(value), why, self.args.place(*dests)))

    def holds(self, *dests: str) -> bool:
        """Return whether the values of `dests` count: always if defaults count (`whole`), else only if any is given."""
        return self.whole or self.args.given(*dests)

    def of_options(self, field: str) -> bool:
        """Return whether the options decide the field rather than `base`: whether the arguments it comes from count."""
        return self.holds(*self.sources.get(field, ()))

    @property
    def layers(self) -> int:
        """Return the number of layers of the model: the pattern's, else --num-layers, else `base`'s.

        0 if none is known.
        """
        if self.parts:
            return len(self.parts)
        return self.args.whole("num_layers") or (self.base.num_hidden_layers if self.base is not None else 0)

    @property
    def counted(self) -> int:
        """Return the number of layers as Megatron-LM counts them.

        It is larger than `layers` if a pattern has a mixer and its MLP as one layer each.
        """
        return sum(self.parts) or self.layers

    def own(self, values: tuple[bool, ...]) -> tuple[bool, ...]:
        """Return the entry of each layer's first Megatron-LM layer; `values` unchanged without a pattern.

        `values` has one entry per layer that Megatron-LM counts.
        """
        if not self.parts:
            return values
        return tuple(values[sum(self.parts[:place])] for place in range(len(self.parts)))

    def get(self, field: str) -> Any:
        """Return a field's value from the options if they decide it, else from `base`; None if neither has one."""
        return self.values.get(field) if self.of_options(field) else value_of(self.base, field)

    @property
    def latent(self) -> bool:
        """Return whether attention is multi-head latent attention (MLA)."""
        return bool(self.get("attention") == "mla")

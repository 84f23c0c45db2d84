"""A person's own numbers, `96e9` or `96GB`, made the quantities of a descriptor, with a source and an uncertainty."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from symconfig.descriptor.amounts import PEAK, SIZE, SPAN, SPEED, Kind, amount
from symconfig.descriptor.cluster import Kernels, Precisions, Quantity
from symconfig.descriptor.document import Document, KeyPath, shorten
from symconfig.descriptor.validate import section
from symconfig.errors import Problem

# Relative standard deviation of a number that is given without one. What a data sheet prints is taken as it is; what
# only a run shows varies among the zoo's fitted constants by 3 to 40 %, of which this is about the middle.
PRINTED, MEASURED = 0.0, 0.1
_MEASURED = frozenset({"latency_s", "context_bytes", "launching", "clock", *Kernels.model_fields})


def given_in(file: str) -> str:
    """Return the source of a number of a person's own file."""
    return f"given by the user in {file}"


def uncertainty(name: str) -> float:
    """Return how far off a field's number may be where the person who gives it does not say."""
    return MEASURED if name in _MEASURED else PRINTED


@dataclass(slots=True)
class Given:
    """The numbers of one document. source: of those that state none; problems: what cannot be read, so far."""

    document: Document
    source: str
    problems: list[Problem] = field(default_factory=list)

    def section(self, value: Any, model: type[BaseModel], path: KeyPath = ()) -> Any:
        """Return a section as its class holds it: each number and amount in it a quantity."""
        if isinstance(value, list):
            return [self.section(item, model, (*path, index)) for index, item in enumerate(value)]
        if model is Quantity:
            return self.quantity(value, str(path[-1]), path, model)
        if not isinstance(value, dict):
            return value
        inner = {info.alias or name: section(info.annotation) for name, info in model.model_fields.items()}
        return {
            name: self._field(item, name, kind, (*path, name), model) if (kind := inner.get(name)) is not None else item
            for name, item in value.items()
        }

    def _field(self, value: Any, name: str, kind: type[BaseModel], path: KeyPath, owner: type[BaseModel]) -> Any:
        return self.quantity(value, name, path, owner) if kind is Quantity else self.section(value, kind, path)

    def quantity(self, value: Any, name: str, path: KeyPath, owner: type[BaseModel]) -> Any:
        """Return a field's number with its source and uncertainty.

        What is no number stays for the descriptor to refuse.
        """
        whole = value if isinstance(value, dict) else {"value": value}
        number = whole.get("value")
        if isinstance(number, str):
            number = self._amount(number, _kind(name, owner), (*path, "value") if whole is value else path)
            if number is None:
                return None
        if "value" not in whole or isinstance(number, bool) or not isinstance(number, int | float):
            return value
        usual = {} if "source" in whole else {"source": self.source, "uncertainty": uncertainty(name)}
        return {**usual, **whole, "value": number}

    def _amount(self, text: str, kind: Kind | None, path: KeyPath) -> float | None:
        if kind is None:
            self.problems.append(self.document.problem("wrong value", path, got=shorten(text), need="a number"))
            return None
        try:
            return amount(text, kind)
        except ValueError as error:
            self.problems.append(self.document.problem(str(error), path, got=shorten(text), need=kind.need))
            return None


def _kind(name: str, owner: type[BaseModel]) -> Kind | None:
    """Return the kind of a field's unit, which its name's end says."""
    if owner is Precisions:
        return PEAK
    ends = {"_bytes_per_s": SPEED, "_bytes": SIZE, "_s": SPAN}
    return next((kind for end, kind in ends.items() if name.endswith(end)), None)


def quantified(document: Document, model: type[BaseModel], source: str) -> Document:
    """Return the document with all its numbers as quantities; those that cannot be read are its `unread`."""
    given = Given(document, source)
    data = given.section(document.data, model)
    return Document(data, document.file, document.keys, document.values, (*document.unread, *given.problems))

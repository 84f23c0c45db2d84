"""What every section of a model's descriptor is: frozen, without unknown fields, of numbers within bounds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, Field, SerializerFunctionWrapHandler, model_serializer

PositiveInt = Annotated[int, Field(gt=0, lt=2**40)]
MAX_LAYERS = 2_048  # the deepest published model has 1,000 (DeepNet); a number far above it is a mistake
MAX_GPUS = 2**20
GpuCount = Annotated[int, Field(gt=0, le=MAX_GPUS)]
BatchSize = Annotated[int, Field(gt=0, le=10**8)]  # sequences
LayerCount = Annotated[int, Field(gt=0, le=MAX_LAYERS)]
Count = Annotated[int, Field(ge=0, lt=2**40)]
Rate = Annotated[float, Field(ge=0.0, le=1.0)]


def refuse(*problems: tuple[object, str]) -> None:
    """Raise ValueError with the sentences of all (condition, sentence) pairs whose condition holds; else do nothing."""
    if wrong := [sentence for holds, sentence in problems if holds]:
        raise ValueError("; ".join(wrong))


class Strict(BaseModel):
    """Frozen, no unknown fields, no coercion of types."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, defer_build=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Return a copy with the fields in `update` replaced, without validation, and without cached properties.

        Pydantic would copy values that `functools.cached_property` computed from the old fields, too.
        """
        copied = super().model_copy(update=update, deep=deep)
        for name in copied.__dict__.keys() - type(self).model_fields.keys():
            del copied.__dict__[name]
        return copied


class Sparse(Strict):
    """A section that is written without its `rare` fields, where they are as in most models."""

    rare: ClassVar[tuple[str, ...]] = ()

    @model_serializer(mode="wrap")
    def _as_most(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields: dict[str, Any] = handler(self)
        for name in self.rare:
            if name in fields and getattr(self, name) == type(self).model_fields[name].default:
                del fields[name]
        return fields

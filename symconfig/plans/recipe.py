"""The published recipe that is nearest to a plan, and what its layout costs in the plan's job."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

_CONFIG = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Pinned:
    """The fastest plan with some pins.

    words: its degrees. loss: its step over the plan's, less one; None: there is none, as `why` says. opens: options
    that are not stable, which the pins ask for and the plan does not use.
    """

    __pydantic_config__ = _CONFIG
    words: str
    loss: float | None = None
    why: str = ""
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NearRecipe:
    """The published recipe that is nearest to the plan. layout: all that it states; None: the plan has it. split: its
    degrees and sharding, with all else as is best for this job; None: the plan has them."""

    __pydantic_config__ = _CONFIG
    id: str
    title: str
    job: str  # what it was published for, in words
    differences: tuple[str, ...]
    layout: Pinned | None = None
    split: Pinned | None = None
    left_out: str = ""  # of its layout, since it has no price

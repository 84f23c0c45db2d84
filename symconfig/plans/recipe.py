"""The published recipe that is nearest to a plan, and what its differences from it cost."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import ConfigDict

_CONFIG = ConfigDict(extra="forbid", strict=True)


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of a published recipe from the plan. loss: what its value alone costs, as a share of the step; None:
    the plan with it does not run, as `why` says. opens: options that are not stable, which it brings and the plan's job
    does not allow."""

    __pydantic_config__ = _CONFIG
    field: str
    ours: str
    theirs: str
    loss: float | None = None
    why: str = ""
    opens: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NearRecipe:
    """The published recipe that is nearest to the plan. loss, why, opens: of its whole layout here, as of a difference.

    allowed: its layout without the choices that open something; None: it opens nothing, or none does so by itself.
    split: its degrees, with all else as is best for this job; None: the plan has them.
    """

    __pydantic_config__ = _CONFIG
    id: str
    title: str
    job: str  # what it was published for, in words
    differences: tuple[Difference, ...]
    loss: float | None = None
    why: str = ""
    opens: tuple[str, ...] = ()
    allowed: Difference | None = None
    split: Difference | None = None
    left_out: str = ""  # of its layout, since it has no price

"""The choices of a plan as the pins that give it again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from symconfig.frameworks.extras import in_effect
from symconfig.plans.configuration import EXTRAS, Configuration, Extra
from symconfig.plans.plan import Candidate
from symconfig.solve.extras import values_of


def _extra(extra: Extra, candidate: Candidate) -> str | None:
    """Return the pin's value of a framework option; None if no pin of this backend can express it."""
    value = getattr(in_effect(candidate.configuration), extra.name)
    if value != extra.usual and candidate.target.backend not in extra.of:
        return None
    return next(word for word, meant in values_of(extra, candidate.configuration.world_size).items() if meant == value)


def _recompute(c: Configuration) -> str | None:
    if c.recompute_method == "block":
        return None
    return f"{c.recompute}:{','.join(c.recompute_modules)}" if c.recompute == "selective" else c.recompute


def _field(name: str, candidate: Candidate) -> str:
    value = getattr(candidate.configuration, name)
    return str(int(value)) if isinstance(value, bool) else f"{value:g}" if isinstance(value, float) else str(value)


# A value that no pin expresses is None.
VALUES: Mapping[str, Callable[[Candidate], str | None]] = {
    **{name: partial(_field, name) for name in ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "precision")},
    **{name: partial(_field, name) for name in ("optimizer_offload", "activation_offload")},
    "mbs": partial(_field, "micro"),
    "zero": partial(_field, "zero_stage"),
    "sp": partial(_field, "sequence_parallel"),
    "recompute": lambda candidate: _recompute(candidate.configuration),
    "cp_comm": lambda candidate: candidate.configuration.cp_comm if candidate.configuration.cp > 1 else None,
    "layout": lambda candidate: candidate.configuration.pipeline_layout,
    **{extra.pin: partial(_extra, extra) for extra in EXTRAS},
}

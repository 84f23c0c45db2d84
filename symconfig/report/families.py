"""`symconfig models --families`: every family of transformers, how its models are made, and which targets take them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from symconfig.report.grid import Block, Grid
from symconfig.report.structure import structure
from symconfig.runs.families import TORCHTITAN, Family

# Targets that say one model to the same framework stand in one column.
COLUMNS = {
    "Megatron-LM": ("megatron", "megatron-yaml", "model-args"),
    "Bridge": ("bridge",),
    "ms-swift": ("ms-swift",),
    "DeepSpeed": ("deepspeed", "transformers", "accelerate"),
    "LLaMA-Factory": ("llamafactory",),
    TORCHTITAN: (TORCHTITAN,),
}
READ_AS = (
    "yes: the default model of the family's class can be planned and written for all targets of that column; a "
    "target's name: for that one alone; by hand: once something is changed in the framework's own code, which the "
    "refusal names. torchtitan takes models by name: the number is how many of the family it has."
)


def family_list(families: Sequence[Family]) -> list[Block]:
    """List the families, one line each."""
    rows = tuple((one.name, described(one), *cells(one)) for one in families)
    read = sum(one.model is not None for one in families)
    return [
        Grid(("family", "its default model", *COLUMNS), rows, left=tuple(range(2 + len(COLUMNS)))),
        f"{read} of {len(families)} families are imported. {READ_AS}",
        "`symconfig models --families NAME` says of one what is in the way.",
    ]


def family_shown(family: Family) -> list[Block]:
    """Show one family with all that is in the way of each target."""
    title = f"{family.name}: {family.class_name or 'no class of transformers'}"
    if family.model is None:
        return [title, *(str(problem) for problem in family.refused)]
    ways = (
        (target, "can be told it" if not reasons else str(reasons[0]))
        for names in COLUMNS.values()
        for target in names
        for reasons in (family.cannot.get(target, ()),)
    )
    more = [f"{target}: {problem}" for target, problems in sorted(family.cannot.items()) for problem in problems[1:]]
    return [Grid.pairs(ways, title), described(family), *more]


def described(family: Family) -> str:
    """Return the structure of a family's default model, or why there is none."""
    return structure(family.model) if family.model is not None else f"refused: {reason(family)}"


def reason(family: Family) -> str:
    """Return why a family is refused, without the place in a file that nobody wrote."""
    first = family.refused[0]
    at = f"{first.field}: " if first.field and first.field != "model_type" else ""
    got = f" (got {first.got})" if first.got and at else ""
    return f"{at}{first.what}{got}"


def cells(family: Family) -> tuple[str, ...]:
    """Return what the targets of each column can be told."""
    return tuple(" ".join(_cell(family, names)) for names in COLUMNS.values())


def _cell(family: Family, names: Sequence[str]) -> Iterator[str]:
    if names == (TORCHTITAN,):
        yield str(len(family.flavors) or "")
        return
    able = [name for name in names if family.can(name)]
    if able == list(names):
        yield "yes"
    elif able:
        yield from able
    elif family.model is not None and any(family.by_hand(name) for name in names):
        yield "by hand"

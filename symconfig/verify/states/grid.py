"""Where a rank lies in its framework's grids. One file owns them: both are the framework's orders of axes."""

from __future__ import annotations

from symconfig.cost.framework import Framework
from symconfig.errors import InputError
from symconfig.plans.degrees import Degrees

DENSE, EXPERT = ("tp", "cp", "dp", "pp"), ("etp", "ep", "edp")


def coordinates(parallel: Degrees, framework: Framework, rank: int) -> dict[str, int]:
    """Return a rank's place in its group along each axis, by name; those of experts on the expert grid.

    Raises InputError for a rank that the plan does not have.
    """
    if not 0 <= rank < parallel.world_size:
        raise InputError(
            "the plan has no such rank", field="rank", got=str(rank), need=f"0 to {parallel.world_size - 1}"
        )
    on_a_stage = parallel.tp * parallel.cp * parallel.dp
    if on_a_stage % (parallel.ep * parallel.etp):
        raise InputError(
            "does not divide the ranks of a stage",
            field="ep x etp",
            got=f"{parallel.ep} x {parallel.etp}",
            need=f"a divisor of {on_a_stage}",
        )
    dense = _places(parallel, framework.dense_grid, rank)
    expert = _places(parallel, framework.expert_grid, rank)
    return {axis: dense[axis] for axis in DENSE} | {axis: expert[axis] for axis in EXPERT}


def stage_of(parallel: Degrees, rank: int) -> int:
    """Return the pipeline stage of a rank."""
    return rank // (parallel.world_size // parallel.pp)


def _places(parallel: Degrees, grid: tuple[str, ...], rank: int) -> dict[str, int]:
    """Return the places along each axis of a grid, innermost first."""
    places = {}
    for axis in grid:
        rank, places[axis] = divmod(rank, getattr(parallel, axis))
    return places

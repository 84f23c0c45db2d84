"""Megatron's and DeepSpeed's degrees laid over the axes of a mesh, and the rows that they give a net."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from symconfig.cost.partition.work import Rows
from symconfig.descriptor.mesh import Axis
from symconfig.graph.program.net import Net
from symconfig.plans.degrees import Degrees
from symconfig.solve.partition.follow import Arrival, Settling
from symconfig.solve.partition.roles import Role, Roles, attends, splitting

AXES = ("tp", "cp", "dp", "ep", "etp")  # of degrees without a pipeline


@dataclass(frozen=True, slots=True)
class Way:
    """Degrees of parallelism without a pipeline: tp x cp x dp = ep x etp x edp = ranks.

    cp_comm: p2p and all_gather exchange keys (the same bytes); a2a splits heads instead (Ulysses). zero: ZeRO stage of
    parameters over the ranks with data of their own.
    """

    degrees: Degrees
    sequence_parallel: bool = False
    cp_comm: str = "p2p"
    zero: int = 0


def way(tp: int = 1, cp: int = 1, dp: int = 1, ep: int = 1, etp: int = 1, **options: Any) -> Way:
    """Return the way with these degrees and no pipeline. options: fields of `Way`."""
    return Way(Degrees(tp=tp, pp=1, vpp=1, cp=cp, ep=ep, etp=etp, dp=dp), **options)


@dataclass(frozen=True, slots=True)
class Along:
    """The role of one axis outside and inside the experts."""

    dense: Role
    expert: Role


def laid(axes: Sequence[Axis], way: Way) -> tuple[Along, ...] | str:
    """Return the role of each axis outside and inside the experts, innermost first, or why it is impossible.

    Degrees are assigned from the inner axes outwards: tp, cp, dp and etp, ep, edp. They must multiply to the mesh's
    ranks, and each must end at an axis.
    """
    ranks, degrees = prod(axis.size for axis in axes), way.degrees
    if degrees.world_size != ranks:
        return f"tp {degrees.tp} x cp {degrees.cp} x dp {degrees.dp} are not the {ranks} ranks of the mesh"
    if ranks % (degrees.ep * degrees.etp):
        return f"ep {degrees.ep} x etp {degrees.etp} does not divide the {ranks} ranks of the mesh"
    tensor = Role.TP_SP if way.sequence_parallel else Role.TP
    context = Role.ULYSSES if way.cp_comm == "a2a" else Role.CP
    dense = _roles_along(axes, ((degrees.tp, tensor), (degrees.cp, context)), Role.DP)
    expert = _roles_along(axes, ((degrees.etp, Role.ETP), (degrees.ep, Role.EP)), Role.EDP)
    if isinstance(dense, str) or isinstance(expert, str):
        return dense if isinstance(dense, str) else str(expert)
    return tuple(Along(*pair) for pair in zip(dense, expert, strict=True))


def _roles_along(axes: Sequence[Axis], wanted: Sequence[tuple[int, Role]], rest: Role) -> list[Role] | str:
    """Return each axis's role, taking (degree, role) pairs from the innermost axis and `rest` beyond them.

    A string names a degree that does not end at an axis.
    """
    left = list(wanted)
    degree = 1
    result: list[Role] = []
    need = 1
    for axis in axes:
        while need == 1 and left:
            degree, role = left.pop(0)
            need = degree
        if need == 1:
            result.append(rest)
        elif need % axis.size:
            return f"{role} of {degree} ends with no axis of the mesh: {need} are left where the next has {axis.size}"
        else:
            result.append(role)
            need //= axis.size
    return result


def settled(net: Net, axes: Sequence[Axis], along: Sequence[Along], zero: int = 0) -> Rows:
    """Return the rows, [nodes, axes], that give the axes these roles; what a role cannot split stays unsplit on it.

    zero: ZeRO stage of parameters over the ranks with data of their own.
    """
    roles, making = Roles(net), Settling(net, axes)
    for number, what in enumerate(along):
        shards = [what.dense in (Role.DP, Role.CP, Role.ULYSSES), what.expert is Role.EDP]

        def wish(index: int, arrivals: Sequence[Arrival], what: Along = what) -> Iterator[int]:
            return roles.wish(index, arrivals, what.dense, what.expert)

        def stage(index: int, shards: Sequence[bool] = shards) -> int:
            return zero if shards[roles.within[index]] else 0

        making.axis(number, wish, stage)
    return making.rows


def lacking(net: Net, axes: Sequence[Axis], along: Sequence[Along], rows: Rows) -> str:
    """Return why the rows do not give the wanted roles, "" if they do.

    The reason is a dim that the program lacks, or an operator that cannot be split into so many parts.
    """
    roles = Roles(net)
    wanted = {
        Role.DP: roles.program.batch,
        Role.CP: roles.sequence,
        Role.ULYSSES: roles.sequence,
        Role.TP: roles.widths.outside,
        Role.TP_SP: roles.widths.outside,
        Role.ETP: roles.widths.inside,
        Role.EP: roles.experts,
    }
    for role in dict.fromkeys([what.dense for what in along] + [what.expert for what in along]):
        mine = [n for n, what in enumerate(along) if role in (what.dense, what.expert)]
        parts = prod(axes[number].size for number in mine)
        if role not in wanted or parts == 1:
            continue
        if not wanted[role]:
            return f"{_MISSING[role]}, which {role} would split"
        due = list(_operators_to_split(roles, role, wanted[role]))
        for index, options in due:
            if not all(rows[index, axis] in options for axis in mine):
                node = net.nodes[index]
                what = node.options[options[0]]
                return f"{what.name} of {node.name} cannot be cut into {parts} parts by {role}, only into {what.parts}"
        if not due:
            sizes = " x ".join(f"{dim} {roles.program.sizes[dim]}" for dim in sorted(wanted[role]))
            return f"{sizes} cannot be cut into {parts} parts by {role}"
    return ""


def _operators_to_split(roles: Roles, role: Role, wanted: frozenset[str]) -> Iterator[tuple[int, Sequence[int]]]:
    """Yield the nodes that the role has to split, with the options that do so."""
    for index, node in enumerate(roles.net.nodes):
        if node.operator is None or roles.within[index] != (role in (Role.ETP, Role.EP)):
            continue
        options = list(splitting(node, wanted))
        if role in (Role.CP, Role.ULYSSES):
            options = options or roles.instead(node)
        if role is Role.ULYSSES and attends(node.operator):
            options = roles.heads(node)
        elif role is Role.DP:
            options = roles.examples(node)
        if options:
            yield index, options


_MISSING = {
    Role.DP: "the program names no batch",
    Role.CP: "the program has no sequence",
    Role.ULYSSES: "the program has no sequence",
    Role.TP: "the program has no heads, MLP width or vocabulary",
    Role.TP_SP: "the program has no heads, MLP width or vocabulary",
    Role.ETP: "the program has no width of experts",
    Role.EP: "the program has no experts",
}

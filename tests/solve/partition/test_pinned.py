"""Pins: every solver keeps to them; what is said where no partition fits is true of the partitions of the problem."""

from __future__ import annotations

from dataclasses import replace
from math import inf, prod
from pathlib import Path

import numpy as np
import pytest

import symconfig
from symconfig.cost.partition.costs import Keep, Objective
from symconfig.cost.partition.kept import floor_bytes
from symconfig.descriptor.load import load_model
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.errors import InfeasibleError, InputError
from symconfig.graph import dims as d
from symconfig.graph.program.build import build
from symconfig.graph.program.of_model import program as of_model
from symconfig.graph.program.program import Program
from symconfig.solve.partition.pinned import read
from symconfig.solve.partition.pipeline.run import pipeline
from symconfig.solve.partition.problem import Solution, assemble
from symconfig.solve.partition.rows import does, layout, spaces
from symconfig.solve.partition.run import Ask, Solver, cases, costs_of, infeasible, net_of, partition
from tests.sample_models import sample_cluster
from tests.solve.partition import brute
from tests.solve.partition.pipeline.brute import ask as ask_for
from tests.solve.partition.pipeline.brute import chain, least_step_s
from tests.solve.partition.programs import Maker, transformer
from tests.solve.partition.test_run import CLUSTER, MESH

TWO = Ask(MESH, CLUSTER, inf, keeps=(Keep.USED,), limit_s=60.0)
PINS = [
    ("layers.0.up=b/2, f/2",),
    ("layers.*.up=whole",),
    ("layers.*.up=h over 2·rail",),
    ("layers.0.up=f/2@nvlink/2@rail",),
    ("layers.*.u.f=2",),
    ("layers.0.u.b=1", "layers.0.y.h=2"),
    ("layers.0.up.weight.h=4",),
    ("x.b=4",),
]


def small(turns: int = 1) -> Program:
    make = Maker({"b": 256 // turns, "h": 256, "f": 1024})
    x, u, y = make.tensor("x", "b", "h"), make.tensor("layers.0.u", "b", "f"), make.tensor("layers.0.y", "b", "h")
    make.add(build("*", "layers.0.up", [x, make.weight("layers.0.up.weight", "h", "f")], [u]))
    make.add(build("*", "layers.0.down", [u, make.weight("layers.0.down.weight", "f", "h")], [y]))
    return make.program(("x",), y.tensor.name, "b")


def least(pins: tuple[str, ...], ask: Ask) -> Solution:
    """Every assignment of the free problem, of which layouts that are not as they are pinned cost without end."""
    (case,) = cases(small, replace(ask, pins=()))
    axes = ask.mesh.axes()
    costs = costs_of(case, ask, axes)
    rows = spaces(costs, axes)
    assert rows is not None
    problem, nodes = assemble(costs, rows, ask.memory_limit), []
    for node, some, of in zip(problem.nodes, rows, case.net.nodes, strict=True):
        able = [all(fits(pin, case.net.program, of, row, axes) for pin in pins) for row in some.tolist()]
        nodes.append(replace(node, cost=np.where(able, node.cost, inf)))
    return brute.solve(replace(problem, nodes=tuple(nodes)))


def fits(pin: str, program: Program, node: object, row: list[int], axes: object) -> bool:
    name, _, value = pin.replace("*", "0").partition("=")
    if not value.isdigit():
        if node.name != name:  # type: ignore[attr-defined]
            return True
        taken = {(option, part.level): part.size for option, parts in does(node, row, axes) for part in parts}  # type: ignore[arg-type]
        taken = {key: size for key, size in taken.items() if key[0] != "whole"}
        if value == "h over 2·rail":
            return taken == {("h", "rail"): 2}
        if value.startswith("f/2@"):
            return taken == {("f", "nvlink"): 2, ("f", "rail"): 2}
        sizes = {option: prod(size for (one, _), size in taken.items() if one == option) for option, _ in taken}
        return sizes == ({} if value == "whole" else {"b": 2, "f": 2})
    tensor, _, dim = name.rpartition(".")
    shown = [layout(port, row, axes) for port in node.ports  # type: ignore[attr-defined,arg-type]
             if port.tensor.name == tensor and (port.output or tensor in program.inputs)]  # fmt: skip
    return all(one.strategy[one.dims.index(dim)] == int(value) for one in shown)


def pinned(pins: tuple[str, ...], ask: Ask = TWO) -> Ask:
    return replace(ask, pins=read(pins, net_of(small, 1), {}))


@pytest.mark.parametrize(
    ("pins", "gamma"),
    [*((pins, None) for pins in PINS), *((PINS[at], 4.0) for at in (0, 3, 7))],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else str(value),
)
def test_every_solver_keeps_to_pins_and_the_exact_ones_find_the_best_of_what_is_left(
    pins: tuple[str, ...], gamma: float | None
) -> None:
    ask = replace(TWO, objective=Objective.SYMTENSOR if gamma else Objective.TIME, gamma=gamma)
    known = least(pins, ask)
    assert known.choice is not None
    for solver in Solver:
        found = partition(small, pinned(pins, replace(ask, solver=solver)))
        assert found.cost >= known.cost * (1 - 1e-9), solver
        if solver in (Solver.EXACT, Solver.AUTO):
            assert found.cost == pytest.approx(known.cost, rel=1e-9)
            assert found.optimal
        for node, row in zip(found.net.nodes, found.rows, strict=True):
            assert all(fits(pin, small(), node, list(row), found.axes) for pin in pins), solver


def test_the_free_answer_is_another() -> None:
    """Else the test above proves less than it says."""
    free = partition(small, TWO)
    costs = [least(pins, TWO).cost for pins in PINS]
    assert sum(cost > free.cost * 1.0001 for cost in costs) >= 6


@pytest.mark.parametrize("turns", [1, 8])
def test_stages_keep_to_pins_too(tmp_path: Path, turns: int) -> None:
    program = chain(tmp_path, [2048, 1024, 4096, 2048, 1024], skip=True)
    ask = replace(ask_for(4, turns), pins=read(["y2.h2=4"], net_of(lambda _: program, 1), {}))
    found = pipeline(lambda turns: program, ask, 1, 3)
    assert found.step_s == pytest.approx(least_step_s(program, ask, 1, 3), rel=1e-9)
    free = pipeline(lambda turns: program, replace(ask, pins=()), 1, 3)
    assert free.step_s < found.step_s
    for one in (stage.partition for stage in found.stages):
        for node, row in zip(one.net.nodes, one.rows, strict=True):
            assert fits("y2.h2=4", program, node, list(row), one.axes)


def test_a_pin_holds_for_every_copy_of_what_is_folded() -> None:
    for name in ("layers.*.gate_up_proj", "layers.3.gate_up_proj"):
        found = symconfig.partition("llama2-7b", "h100", 8, 8, solver="adaptive", pins={name: "B/2, a/4"})
        split = "batch over 2·nvlink, fused_intermediate_size over 4·nvlink"
        assert found.strategies["layers.0.gate_up_proj"] == split


@pytest.mark.parametrize(
    ("pin", "words"),
    [
        ("layers.*.gate_proj=a/8", ("there is no such operator", "layers.*.gate_up_proj")),
        ("layers.*.gate_up_proj=D/3", ("cannot be split like this on 8 GPUs", "hidden_size of 4,096")),
        ("layers.*.gate_up_proj=q/8", ("cannot be split by this", "fused_intermediate_size")),
        ("layers.*.gat.F=8", ("there is no such tensor", "layers.*.gate")),
        ("layers.*.gate.C=8", ("has no such dim", "intermediate_size")),
        ("layers.*.gate.F=3", ("of 11,008 cannot be cut into 3 parts on 8 GPUs", "1, 2, 4 or 8")),
        ("gate", ("is no pin", "TENSOR.DIM=PARTS")),
        ("layers.*.gate_up_proj=a/8·rail", ("there is no such level", "nvlink")),
        ("layers.*.gate_up_proj=a", ("is no layout",)),
    ],
)
def test_a_pin_that_cannot_be_is_refused_with_what_can(pin: str, words: tuple[str, ...]) -> None:
    with pytest.raises(InputError) as raised:
        symconfig.partition("llama2-7b", "h100", 8, 8, solver="adaptive", pins=[pin])
    text = str(raised.value)
    assert all(word in text for word in ("pin", *words)), text


def test_pins_of_one_operator_that_exclude_each_other_are_refused_and_those_of_several_are_named() -> None:
    with pytest.raises(InputError, match="cannot be split in all these ways at once"):
        symconfig.partition(
            "llama2-7b", "h100", 8, 8, num_microbatches=1, pins={"layers.*.down_proj": "B/8", "layers.*.mlp_out.D": 8}
        )
    pins = {"layers.*.down_proj": "F/8", "layers.*.mlp.down_proj.weight.D": 8}
    with pytest.raises(InfeasibleError, match="no pipeline of 2 stages keeps to layers"):
        symconfig.pipeline(
            "llama3.2-1b", "h100", 2, 2, stages=2, num_microbatches=1, recompute="none", pins=["layers.*.o_proj=D/2"]
        )
    with pytest.raises(InfeasibleError, match="pin"):
        symconfig.partition(
            "llama2-7b", "h100", 8, 8, pins=pins, solver="adaptive", recompute="none", num_microbatches=1
        )


def test_a_dim_whose_name_has_dots_is_pinned() -> None:
    make = Maker({"b": 256, "h": 256, "expert.width": 1024})
    x, u = make.tensor("x", "b", "h"), make.tensor("layers.0.u", "b", "expert.width")
    make.add(build("*", "layers.0.up", [x, make.weight("layers.0.up.weight", "h", "expert.width")], [u]))
    program = make.program(("x",), u.tensor.name, "b")
    (pin,) = read(("layers.*.u.expert.width=4",), net_of(lambda _: program, 1), {})
    assert (pin.cuts[0].name, pin.cuts[0].parts) == ("expert.width", 4)


PROGRAM = transformer(2)


def mesh(gpus: int) -> Mesh:
    return Mesh((MeshLevel("nvlink", gpus, 4e11, 1e-6),))


def programs(turns: int) -> Program:
    return PROGRAM


ASK = Ask(mesh(2), sample_cluster(), 1.0, solver=Solver.ADAPTIVE, keeps=(Keep.USED,))


@pytest.mark.parametrize("share", [0.6, 0.2])
def test_the_mesh_that_is_named_holds_it_and_the_one_of_half_as_many_does_not(share: float) -> None:
    floor = floor_bytes(costs_of(next(cases(programs, ASK)), ASK, ()), 2)
    ask = replace(ASK, memory_limit=share * floor)
    said = str(infeasible(programs, ask, lambda times: mesh(2 * times)))
    assert f"at least {floor / 2**20:,.2f} MiB are kept on a GPU" in said
    gpus = int(said.split("Try: ")[1].split()[0])
    assert partition(programs, replace(ask, mesh=mesh(gpus))) is not None
    assert partition(programs, replace(ask, mesh=mesh(gpus // 2))) is None


@pytest.mark.parametrize(
    ("sizes", "name", "expected"),
    [  # on two GPUs: states of 18 bytes; what is kept of every layer
        (
            {d.FFN: 8192, d.BATCH: 2},
            "weight layers.*.up_proj with its gradient and optimizer state",
            3 * 18 * 128 * 8192 / 2,
        ),
        ({d.BATCH: 512, "layers": 6}, "tensor layers.*.up", 6 * 512 * 64 * 512 * 2 / 2),
    ],
)
def test_what_binds_is_the_largest_of_states_and_of_what_is_kept(
    sizes: dict[str, int], name: str, expected: float
) -> None:
    said = str(infeasible(lambda turns: transformer(**{"layers": 3, **sizes}), ASK, lambda times: None))
    assert f"most of it is {name} ({expected / 2**20:.2f} MiB)" in said
    assert "no larger mesh was found to hold it" in said


@pytest.mark.parametrize("limit", [1.0, 1e4])
def test_a_limit_below_everything_is_refused_by_the_search(limit: float) -> None:
    assert partition(programs, replace(ASK, memory_limit=limit)) is None


@pytest.mark.parametrize("objective", Objective)
def test_the_adaptive_solver_comes_near_to_what_nothing_can_hold_less_than(objective: Objective) -> None:
    """States of 6.7 thousand million parameters on eight GPUs; the floor is everything in eighths."""
    model = load_model("llama2-7b")
    ask = replace(ASK, mesh=mesh(8), objective=objective, keeps=(Keep.BORDERS,))

    def large(turns: int) -> Program:
        return of_model(model, 8, 2048)

    floor = floor_bytes(costs_of(next(cases(large, ask)), ask, ()), 8)
    assert partition(large, replace(ask, memory_limit=1.05 * floor)) is not None

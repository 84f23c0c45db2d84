"""The exact solver against brute force on small problems, and against itself on large ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.solve.cbc import spent_s
from symconfig.solve.partition import exact, program, reduce
from symconfig.solve.partition.price import Known
from symconfig.solve.partition.problem import Edge, Node, Problem
from symconfig.solve.partition.reduce import space
from tests.solve.partition import brute
from tests.solve.partition.samples import network, small

ROUNDING = 1e-9


@pytest.mark.parametrize("seeds", [range(first, first + 30) for first in range(0, 300, 30)], ids=str)
def test_the_optimum_is_that_of_brute_force(seeds: range) -> None:
    for seed in seeds:
        problem = small(seed)
        known, found = brute.solve(problem), exact.solve(problem)
        assert found.optimal, seed
        assert (found.choice is None) == (known.choice is None), seed
        assert found.cost == pytest.approx(known.cost, rel=ROUNDING), seed
        assert found.bound <= found.cost
        if found.choice is not None:
            assert problem.fits(found.choice), seed
            assert problem.cost(found.choice) == found.cost


def test_the_samples_are_of_every_kind() -> None:
    """Else the test above proves less than it says."""
    problems = [small(seed) for seed in range(300)]
    answers = [brute.solve(problem) for problem in problems]
    free = [brute.solve(replace(problem, memory_limit=np.inf)) for problem in problems]
    assert sum(answer.choice is None for answer in answers) >= 30
    assert (
        sum(answer.choice is not None and answer.cost > one.cost for answer, one in zip(answers, free, strict=True))
        >= 50
    )  # the limit binds
    assert sum(not np.isfinite(edge.cost).all() for problem in problems for edge in problem.edges) >= 100
    assert sum(edge.memory.any() for problem in problems for edge in problem.edges) >= 50


@pytest.mark.parametrize("seed", range(0, 300, 7))
def test_the_program_alone_finds_the_same(seed: int) -> None:
    problem = small(seed)
    known, found = brute.solve(problem), program.solve(problem)
    assert found.optimal
    assert found.cost == pytest.approx(known.cost, rel=ROUNDING)
    assert (found.choice is None) == (known.choice is None)
    assert found.bound <= found.cost


@pytest.mark.parametrize("seed", range(24))
def test_a_part_that_is_split_gives_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither elimination nor a program: messages and halves alone."""
    monkeypatch.setattr(exact, "FEW", -1)
    monkeypatch.setattr(exact, "ENTRIES", 0)
    problem = small(seed)
    found = exact.solve(problem)
    assert found.optimal
    assert found.cost == pytest.approx(brute.solve(problem).cost, rel=ROUNDING)


@pytest.mark.parametrize("seed", range(24))
def test_split_by_transient_it_gives_the_same(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "SHARES", -1)
    problem = small(seed)
    assert exact.solve(problem).cost == pytest.approx(brute.solve(problem).cost, rel=ROUNDING)


@pytest.mark.parametrize("sparse", [0, 10**9], ids=["always copied", "never copied"])
@pytest.mark.parametrize("seed", range(0, 300, 11))
def test_tables_may_keep_what_is_not_used_and_choices_may_share_lines(
    seed: int, sparse: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every choice twice, with its lines shared: the optimum is that of the plain problem."""
    monkeypatch.setattr(reduce, "SPARSE", sparse)
    problem = small(seed)
    nodes = [replace(n, cost=np.repeat(n.cost, 2), memory=np.repeat(n.memory, 2), transient=np.repeat(n.transient, 2))
             for n in problem.nodes]  # fmt: skip
    twice = [np.repeat(np.arange(len(n.cost)), 2) for n in problem.nodes]
    edges = [replace(edge, rows=twice[edge.u], columns=twice[edge.v]) for edge in problem.edges]
    found, known = exact.solve(Problem(tuple(nodes), tuple(edges), problem.memory_limit)), brute.solve(problem)
    assert found.optimal
    assert found.cost == pytest.approx(known.cost, rel=ROUNDING)


WITHOUT = {
    "labels": [("_labelled", lambda now, known: False)],
    "a program": [("_programmed", lambda now, known: False)],
    "labels or a program": [("SHARES", -1), ("_labelled", lambda now, known: False)],
    "elimination": [("FEW", -1), ("ENTRIES", 0)],
    "anything but messages first": [("FEW", -1)],
}


@pytest.mark.parametrize("without", WITHOUT)
@pytest.mark.parametrize("seeds", [range(first, 60, 3) for first in range(3)], ids=str)
def test_what_is_proved_does_not_hang_on_what_descents_happen_to_find(
    seeds: range, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small problems a descent finds the optimum nearly always, and wrong bounds would do no harm."""
    monkeypatch.setattr(Known, "improve", lambda self, space, choice, price: self.offer(space.original(choice)))
    for name, value in WITHOUT[without]:
        monkeypatch.setattr(exact, name, value)
    for seed in seeds:
        problem = small(seed)
        known, found = brute.solve(problem), exact.solve(problem)
        assert found.optimal, seed
        assert (found.choice is None) == (known.choice is None), seed
        assert found.cost == pytest.approx(known.cost, rel=ROUNDING), seed


@pytest.mark.parametrize("seed", range(0, 60, 2))
def test_with_one_choice_less_nothing_gets_better(seed: int) -> None:
    problem = small(seed)
    found = exact.solve(problem)
    if found.choice is None:
        return
    for v, chosen in enumerate(found.choice):
        node = problem.nodes[v]
        forbidden = replace(node, cost=np.where(np.arange(len(node.cost)) == chosen, np.inf, node.cost))
        nodes = (*problem.nodes[:v], forbidden, *problem.nodes[v + 1 :])
        assert exact.solve(replace(problem, nodes=nodes)).cost >= found.cost * (1 - ROUNDING)


def _limited(problem: Problem, tight: float) -> Problem:
    """A limit between what holds least and what the unlimited optimum holds."""
    free = exact.solve(problem)
    assert free.choice is not None
    least = sum(float(node.memory.min()) for node in problem.nodes)
    return replace(problem, memory_limit=least + tight * (problem.memory(free.choice) - least))


@pytest.mark.parametrize(("options", "levels"), [(5, 3), (7, 3)])
@pytest.mark.parametrize("tight", [0.7, 0.2])
def test_a_network_of_thirty_nodes_is_proved_in_seconds(options: int, levels: int, tight: float) -> None:
    problem = _limited(network(1, 30, options, levels), tight)
    begun = spent_s()
    found = exact.solve(problem)
    assert found.optimal
    assert found.choice is not None
    assert problem.fits(found.choice)
    assert spent_s() - begun < 5


def test_a_network_of_few_choices_costs_what_the_program_alone_says() -> None:
    """Nothing but the program is shared; sizes that brute force cannot do."""
    problem = _limited(network(5, 20, 3, 2), 0.1)
    alone = program.solve(problem)
    assert alone.optimal
    assert alone.choice is not None
    assert problem.fits(alone.choice)
    assert exact.solve(problem).cost == pytest.approx(alone.cost, rel=ROUNDING)


@pytest.mark.parametrize("limit_s", [0.0, 0.15, 0.2, 0.25, 0.3])
def test_the_program_alone_stops_in_time_with_a_true_bound(limit_s: float) -> None:
    """It takes some 4 s."""
    problem = _limited(network(3, 30, 5, 2), 0.1)
    found = program.solve(problem, limit_s)
    assert not found.optimal
    assert found.bound <= exact.solve(problem).cost <= found.cost


@pytest.mark.parametrize("seed", range(0, 60, 7))
def test_the_program_finds_nothing_that_costs_as_much_as_the_cutoff(seed: int) -> None:
    problem = small(seed)
    of, known = space(problem), brute.solve(problem)
    if of is None or known.choice is None:
        return
    assert program.best(of, known.cost + 0.5, None).bound == pytest.approx(known.cost)
    none = program.best(of, known.cost - 0.5, None)
    assert (none.choice, none.proved) == (None, True)


def test_a_node_without_a_choice_is_not_split(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact, "FEW", -1)
    monkeypatch.setattr(exact, "ENTRIES", 0)
    monkeypatch.setattr(Known, "improve", lambda self, space, choice, price: None)
    random, sizes = np.random.default_rng(5), (1, 8, 8, 8, 8)
    nodes = tuple(Node("n", random.random(size), np.zeros(size), np.zeros(size)) for size in sizes)
    pairs = [(u, v) for v in range(5) for u in range(v)]
    edges = tuple(Edge(u, v, random.random((sizes[u], sizes[v])), np.zeros((sizes[u], sizes[v]))) for u, v in pairs)
    found = exact.solve(Problem(nodes, edges), limit_s=5.0)
    assert found.optimal
    assert found.cost == pytest.approx(brute.solve(Problem(nodes, edges)).cost)


def test_the_optimum_that_was_planted_is_found_and_proved() -> None:
    """A ring of repeated layers; one choice a node costs nothing beside its like, and everything else costs more."""
    random = np.random.default_rng(0)
    count, size = 40, 60
    planted = tuple(int(c) for c in random.integers(0, size, count))
    nodes = []
    for v, c in enumerate(planted):
        cost = random.uniform(1.5, 9, size)
        cost[c] = 1.0
        nodes.append(Node(f"n{v}", cost, random.uniform(1, 5, size), np.ones(size)))
    ends = [(v, (v + 1) % count) for v in range(count)] + [(v, v + 3) for v in range(0, count - 3, 2)]
    edges = []
    for u, v in ends:
        cost = random.uniform(0, 2, (size, size))
        cost[planted[u], planted[v]] = 0.0
        edges.append(Edge(u, v, cost, np.zeros((size, size))))
    problem = Problem(tuple(nodes), tuple(edges))
    found = exact.solve(replace(problem, memory_limit=problem.memory(planted)))
    assert found.choice == planted
    assert found.optimal
    assert found.cost == count


def test_the_same_input_gives_the_same_answer_and_a_start_no_worse_one() -> None:
    problem = _limited(network(2, 20, 5, 2), 0.2)
    first = exact.solve(problem)
    assert first == exact.solve(problem)
    assert first.choice is not None
    again = exact.solve(problem, start=first.choice)
    assert again.choice == first.choice
    assert again.optimal
    assert exact.solve(problem, start=[0] * 20).cost == pytest.approx(first.cost, rel=ROUNDING)


def test_out_of_time_it_gives_a_true_bound_and_does_not_call_it_optimal() -> None:
    problem = _limited(network(2, 30, 5, 3), 0.05)
    best = exact.solve(problem)
    stopped = exact.solve(problem, limit_s=0.0)
    assert not stopped.optimal
    assert stopped.bound <= best.cost <= stopped.cost
    assert best.optimal


def test_below_a_cost_it_finds_the_optimum_or_proves_that_there_is_none() -> None:
    problem = _limited(network(2, 20, 5, 2), 0.2)
    best = exact.solve(problem)
    assert exact.solve(problem, below=best.cost * 1.01).cost == pytest.approx(best.cost, rel=ROUNDING)
    none = exact.solve(problem, below=best.cost * 0.99)
    assert none.choice is None
    assert none.optimal
    assert none.bound == best.cost * 0.99


def test_forbidden_altogether_or_too_large_nothing_is_chosen_and_that_is_proved() -> None:
    node = Node("a", np.array([1.0, 2.0]), np.array([10.0, 8.0]), np.array([0.0, 1.0]))
    never = Edge(0, 1, np.full((2, 2), np.inf), np.zeros((2, 2)))
    for problem in (Problem((node, node), (), 16.9), Problem((node, node), (never,))):
        found = exact.solve(problem)
        assert found.choice is None
        assert found.optimal
        assert found.bound == np.inf


def test_a_pair_of_a_node_with_itself_counts_its_diagonal() -> None:
    node = Node("a", np.array([1.0, 2.0]), np.zeros(2), np.zeros(2))
    edge = Edge(0, 0, np.array([[9.0, 0.0], [0.0, 3.0]]), np.array([[1.0, 9.0], [9.0, 4.0]]))
    for solver in (exact, brute):
        assert solver.solve(Problem((node,), (edge,))).choice == (1,)
        assert solver.solve(Problem((node,), (edge,), 3.0)).choice == (0,)
        assert solver.solve(Problem((node,), (edge,), 0.5)).choice is None

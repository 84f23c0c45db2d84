"""The exact solver against brute force on small problems, and against the programme alone on larger ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from symconfig.solve.partition import exact, milp
from symconfig.solve.partition.milp import Answer, spent_s
from symconfig.solve.partition.problem import Node, Problem, simplified, undominated
from tests.solve.partition import brute
from tests.solve.partition.samples import dense_edge, network, small

ROUNDING = 1e-9


@pytest.mark.parametrize("seeds", [range(first, first + 30) for first in range(0, 180, 30)], ids=str)
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
    assert sum(edge.memory is not None for problem in problems for edge in problem.edges) >= 50


def alone(problem: Problem, limit_s: float = np.inf) -> tuple[Answer, float]:
    """The programme of the whole problem, without bounds that come before, and the cost of its answer."""
    of = simplified(problem)
    if of is None:
        return Answer(None, True), np.inf
    answer = milp.solve(of, limit_s)
    return answer, problem.cost(of.original(answer.choice)) if answer.choice is not None else np.inf


@pytest.mark.parametrize("seed", range(0, 300, 21))
def test_the_programme_alone_finds_the_same(seed: int) -> None:
    problem = small(seed)
    known, (found, cost) = brute.solve(problem), alone(problem)
    assert found.proved
    assert cost == pytest.approx(known.cost, rel=ROUNDING)


@pytest.mark.parametrize("seed", range(0, 300, 27))
def test_nothing_that_bounds_or_dominance_drop_costs_less_than_the_ceiling(seed: int) -> None:
    """With any ceiling the cheapest choice below it stays, and the lower bound is below the optimum."""
    problem = small(seed)
    known = brute.solve(problem)
    for above in (0.02, 0.3, 5.0):
        relaxed, ceiling = exact._Relaxation(_simplified(problem)), known.cost * (1 + above) + above
        none = exact._Incumbent(replace(problem, memory_limit=-np.inf), np.inf, np.inf)
        if relaxed.raise_bound(ceiling, none):
            assert relaxed.bound <= known.cost * (1 + ROUNDING)
            answer = milp.solve(undominated(relaxed.problem))
            if known.choice is not None:
                assert answer.choice is not None
                choice = undominated(relaxed.problem).original(answer.choice)
                assert problem.cost(choice) == pytest.approx(known.cost, rel=ROUNDING)
        else:
            assert known.choice is None


def _simplified(problem: Problem) -> Problem:
    of = simplified(problem)
    return of if of is not None else pytest.skip("every choice is forbidden")


@pytest.mark.parametrize("seed", range(0, 300, 33))
def test_choices_may_share_lines_of_a_pairs_tables(seed: int) -> None:
    """Every choice twice, with its lines shared: the optimum is that of the plain problem."""
    problem = small(seed)
    nodes = [replace(n, cost=np.repeat(n.cost, 2), memory=np.repeat(n.memory, 2), transient=np.repeat(n.transient, 2))
             for n in problem.nodes]  # fmt: skip
    twice = [np.repeat(np.arange(len(n.cost)), 2) for n in problem.nodes]
    edges = [replace(edge, rows=twice[edge.u], columns=twice[edge.v]) for edge in problem.edges]
    found, known = exact.solve(Problem(tuple(nodes), tuple(edges), problem.memory_limit)), brute.solve(problem)
    assert found.optimal
    assert found.cost == pytest.approx(known.cost, rel=ROUNDING)


@pytest.mark.parametrize("seeds", [range(first, 120, 6) for first in range(2)], ids=str)
def test_what_is_proved_does_not_hang_on_what_sweeps_happen_to_find(
    seeds: range, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On small problems a sweep finds the optimum nearly always, and wrong bounds would do no harm."""
    sweep = exact._Relaxation._sweep
    monkeypatch.setattr(exact._Relaxation, "_sweep", lambda *of: (*(r := sweep(*of))[:1], (0,) * len(r[1]), *r[2:]))
    for seed in seeds:
        problem = small(seed)
        known, found = brute.solve(problem), exact.solve(problem)
        assert found.optimal, seed
        assert (found.choice is None) == (known.choice is None), seed
        assert found.cost == pytest.approx(known.cost, rel=ROUNDING), seed


def _limited(problem: Problem, tight: float) -> Problem:
    """A limit between what holds least and what the unlimited optimum holds."""
    free = exact.solve(problem)
    assert free.choice is not None
    least = sum(float(node.memory.min()) for node in problem.nodes)
    return replace(problem, memory_limit=least + tight * (problem.memory(free.choice) - least))


@pytest.mark.parametrize(("options", "levels", "tight"), [(5, 3, 0.7), (5, 3, 0.2)])
def test_a_network_of_thirty_nodes_is_proved_in_seconds(options: int, levels: int, tight: float) -> None:
    problem = _limited(network(1, 30, options, levels), tight)
    begun = spent_s()
    found = exact.solve(problem)
    assert found.optimal
    assert found.choice is not None
    assert problem.fits(found.choice)
    assert spent_s() - begun < 5


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
        edges.append(dense_edge(u, v, cost))
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
    problem = _limited(network(1, 30, 5, 3), 0.7)
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
    never = dense_edge(0, 1, np.full((2, 2), np.inf))
    for problem in (Problem((node, node), (), 16.9), Problem((node, node), (never,))):
        found = exact.solve(problem)
        assert found.choice is None
        assert found.optimal
        assert found.bound == np.inf


def test_a_pair_of_a_node_with_itself_counts_its_diagonal() -> None:
    node = Node("a", np.array([1.0, 2.0]), np.zeros(2), np.zeros(2))
    edge = dense_edge(0, 0, np.array([[9.0, 0.0], [0.0, 3.0]]), np.array([[1.0, 9.0], [9.0, 4.0]]))
    for solver in (exact, brute):
        assert solver.solve(Problem((node,), (edge,))).choice == (1,)
        assert solver.solve(Problem((node,), (edge,), 3.0)).choice == (0,)
        assert solver.solve(Problem((node,), (edge,), 0.5)).choice is None

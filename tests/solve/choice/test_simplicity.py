"""The written order of simplicity."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from symconfig.cost.stages import Offload
from symconfig.cost.table import Choice
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.descriptor.recipe import Layout, every_recipe
from symconfig.solve.choice import simplicity as simplicities
from symconfig.solve.choice.published import splits
from symconfig.solve.choice.simplicity import FEW_CHUNKS, simplicity
from symconfig.solve.pieces import WHOLE
from symconfig.solve.prospect import Prospect
from symconfig.solve.restore import restore
from symconfig.solve.search import search
from tests.solve.naive import job

NEAR = 8
Has = Callable[[Layout, int], bool]  # of a layout, on so many GPUs that fast links join


@pytest.fixture(scope="module")
def plain() -> Prospect:
    """An equal pipeline of a few chunks on two nodes, with nothing unusual."""
    pins = {
        "tp": "4",
        "pp": "4",
        "vpp": "5",
        "cp": "1",
        "mbs": "1",
        "recompute": "none",
        "layout": "equal",
        "activation_offload": "0",
    }
    pins["optimizer_offload"] = "0"
    model, cluster = load_model("llama3.1-70b"), load_cluster("h100")
    plan = search(model, cluster, job(64, 64, 2048, pins=pins, limits={"memory_margin": 0.0, "memory_risk": 1.0}))
    return restore(plan, plan.best)


def _degrees(**changed: int) -> Callable[[Prospect], Prospect]:
    return lambda found: replace(found, degrees=replace(found.degrees, **changed))


def _moved(found: Prospect) -> tuple[tuple[str, ...], ...]:
    """Move a layer of the third chunk to the second."""
    first, second, third, *rest = found.split.chunks
    return first, (*second, third[0]), third[1:], *rest


# From what decides first to what decides last.
UNUSUAL: dict[str, Callable[[Prospect], Prospect]] = {
    "optimizer offload": lambda found: replace(found, offload=Offload(0.5)),
    "tp beyond a node": _degrees(tp=16),
    "full recompute": lambda found: replace(found, choice=WHOLE),
    "a free cut": lambda found: replace(found, split=replace(found.split, layout="Et|t|L", chunks=_moved(found))),
    "a cut of its own": lambda found: replace(found, split=replace(found.split, layout="Et|t|L")),
    "the loss as a layer": lambda found: replace(found, split=replace(found.split, account_for_loss=True)),
    "ten chunks": _degrees(vpp=10),
    "cp with few tokens": _degrees(cp=2),
    "ep beyond some nodes": _degrees(ep=64),
    "ep beyond a node": _degrees(ep=16),
    "selective recompute": lambda found: replace(found, choice=Choice(frozenset({"core_attn"}))),
    "three sequences": lambda found: replace(found, micro=3),
}


def test_what_is_unusual_stands_in_the_written_order(plain: Prospect, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(simplicities, "options", lambda backend: ())  # of which some are unusual, too
    marks = [simplicity(change(plain), NEAR) for change in UNUSUAL.values()]
    assert all(mark > simplicity(plain, NEAR) for mark in marks)
    assert marks == sorted(marks, reverse=True)


@pytest.mark.parametrize(
    ("among", "has"),
    [
        (lambda layout, _: layout.pp > 1, lambda layout, _: "|" in (layout.stages or "")),
        (lambda layout, _: layout.pp > 1, lambda layout, _: layout.vpp > FEW_CHUNKS),
        (lambda layout, _: layout.ep > 1, lambda layout, joined: layout.ep > joined),
    ],
    ids=["stages of a string", "many chunks", "experts beyond joined GPUs"],
)
def test_recompute_of_whole_layers_decides_before_what_more_published_layouts_have(among: Has, has: Has) -> None:
    """Each without the other, on NVIDIA's GPUs."""
    clusters = ((recipe.layout, load_cluster(recipe.job.cluster)) for _, recipe in every_recipe())
    on = [(layout, cluster.joined_gpus) for layout, cluster in clusters if cluster.gpu.vendor == "nvidia"]
    seen = [(has(*each), (each[0].recompute or "").startswith("full")) for each in on if among(*each)]
    assert seen.count((True, False)) > 2 * seen.count((False, True))


def test_an_option_that_is_not_stable_counts_more_than_a_cut_of_its_own(plain: Prospect) -> None:
    cut = UNUSUAL["a cut of its own"](plain)
    assert simplicity(_degrees(vpp=32)(plain), NEAR) > simplicity(cut, NEAR)


def test_a_published_split_is_plainer_than_another_in_equal_stages(plain: Prospect) -> None:
    p = plain.degrees
    mine, cut = (p.tp, p.pp, p.cp, p.ep), UNUSUAL["a cut of its own"](plain)
    assert simplicity(cut, NEAR, {mine}) < simplicity(plain, NEAR, {(1, 1, 1, 1)})
    assert simplicity(plain, NEAR, ()) == simplicity(plain, NEAR, {mine})


def test_published_splits_are_of_the_model_where_it_is_known_and_else_of_its_kind() -> None:
    cluster = load_cluster("h100")
    known, unknown = load_model("llama3.1-70b"), load_model("llama3.1-70b").model_copy(update={"name": "mine"})
    assert (4, 4, 2, 1) in splits(known, cluster)  # NVIDIA's on 64 GPUs
    assert splits(known, cluster) != splits(unknown, cluster)
    assert {ep for *_, ep in splits(unknown, cluster)} == {1}
    assert not splits(known, load_cluster("v100-16gb"))


def test_fewer_chunks_are_plainer_among_equals(plain: Prospect) -> None:
    assert simplicity(_degrees(vpp=2)(plain), NEAR) < simplicity(plain, NEAR)


def test_long_sequences_may_be_split(plain: Prospect) -> None:
    long = replace(plain, request=replace(plain.request, seq_length=32768))
    few, many = (simplicity(_degrees(cp=cp)(long), NEAR) for cp in (1, 4))
    assert few == many

"""The published layouts that come with symconfig: all are read, can run, and are there once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from symconfig.descriptor import recipe as module
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.descriptor.recipe import Recipe, every_recipe, find_recipe, load_recipes, recipe_models
from symconfig.errors import InputError
from symconfig.solve.pins import parse

EVERY = list(every_recipe())


def test_there_are_enough_and_none_twice() -> None:
    assert len(EVERY) >= 150
    ids = Counter(recipe.id for _, recipe in EVERY)
    assert max(ids.values()) == 1
    stated = Counter((file.model, recipe.source, recipe.job, recipe.layout, recipe.options) for file, recipe in EVERY)
    assert max(stated.values()) == 1
    assert set(recipe_models()) <= set(zoo_models())


@pytest.mark.parametrize("model", recipe_models())
def test_every_recipe_says_its_source_and_can_run(model: str) -> None:
    file = load_recipes(model)
    layers, experts = load_model(model).num_hidden_layers, load_model(model).experts
    assert file.model == model
    assert {recipe.source for recipe in file.recipes} == set(file.sources)
    for recipe in file.recipes:
        job, layout = recipe.job, recipe.layout
        assert load_cluster(job.cluster).name == job.cluster
        assert job.gpus % (layout.tp * layout.pp * layout.cp) == 0, recipe.id
        assert job.global_batch_size % (recipe.dp * (layout.micro or 1)) == 0, recipe.id
        assert layout.pp * layout.vpp <= layers + 2, recipe.id
        assert layout.ep == 1 or (experts is not None and experts.num_experts % layout.ep == 0), recipe.id
        assert recipe.framework
        assert recipe.entry


@pytest.mark.parametrize("recipe", [recipe for _, recipe in EVERY[::7]], ids=lambda recipe: recipe.id)
def test_the_pins_of_a_recipe_are_pins(recipe: Recipe) -> None:
    pins = parse(recipe.as_pins())
    degrees = recipe.layout.degrees
    assert {name: pins.ranges[name] for name in degrees} == {name: (value, value) for name, value in degrees.items()}


def test_what_a_recipe_states_is_a_pin_or_said_to_be_none() -> None:
    for _, recipe in EVERY:
        pins, unsaid = recipe.as_pins(), " ".join(recipe.without_pin())
        if recipe.layout.tp > 1 and recipe.options.tp_comm is not None:
            assert pins["user_buffers"] == str(recipe.options.tp_comm).lower()
        if recipe.options.gradients is not None:
            assert pins["grad_dtype"] == recipe.options.gradients
        if recipe.layout.ep > 1 and recipe.options.dispatcher in ("deepep", "hybridep"):
            assert pins["dispatcher"] == recipe.options.dispatcher
            assert "dispatcher" not in unsaid
        if recipe.options.cuda_graphs not in (None, "none") and "cuda_graphs" not in pins:
            assert "cuda graphs" in unsaid


def test_overlaps_of_other_frameworks_are_not_those_of_megatron() -> None:
    """Megatron-LM's pairs of passes need several chunks on a stage, and user buffers GPUs of NVIDIA."""
    named = set()
    for _, recipe in EVERY:
        layout, options = recipe.layout, recipe.options
        assert not options.moe_overlap or layout.pp == 1 or layout.vpp > 1, recipe.id
        assert not options.tp_comm or load_cluster(recipe.job.cluster).gpu.vendor == "nvidia", recipe.id
        if options.own:
            named.update(options.own.split(", "))
            assert f"own {options.own}" in recipe.without_pin()
    assert named == {"ascend-coc", "ascend-mc2", "moe-alltoall-overlap-comm", "moe-fb-overlap", "DualPipe"}


def test_an_unknown_name_says_the_nearest() -> None:
    with pytest.raises(InputError, match="unknown recipe") as error:
        find_recipe(EVERY[0][1].id + "x")
    assert (error.value.problems[0].hint or "").split(" or ")[0] == EVERY[0][1].id


def test_a_source_that_is_not_listed_is_a_problem_of_the_file(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # fmt: skip
    (tmp_path / "recipes").mkdir()
    text = """\
schema: symconfig.recipes/2
model: llama2-7b
sources: {a: {title: A, release: "1"}}
recipes:
- id: x
  source: b
  framework: f
  entry: e
  kind: training
  job: {cluster: h100, gpus: 8, global_batch_size: 8, seq_length: 4096}
  layout: {tp: 8}
"""
    (tmp_path / "recipes" / "odd.yaml").write_text(text, encoding="utf-8")
    monkeypatch.setattr(module, "data_dir", lambda _: tmp_path)
    with pytest.raises(InputError, match=r"odd.yaml:6:.*recipes\[0\].source: no such source \(got b, need one of a\)"):
        load_recipes("odd")

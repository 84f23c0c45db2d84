"""What published runs give a job: their rates at their sizes, and their layouts as recipes."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from symconfig.descriptor import recipe as module
from symconfig.descriptor.learning_rate import derived, habits, neighbours, rate, short, why
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.descriptor.recipe import Recipe, every_recipe, find_recipe, load_recipes, recipe_models
from symconfig.descriptor.task import Task
from symconfig.descriptor.training import DERIVED, Training
from symconfig.errors import InputError
from symconfig.solve.pins import parse
from tools.generate import is_current

TASKS = st.sampled_from(sorted(habits()))


def of(task: Task, parameters: float, **said: Any) -> Any:
    return derived(Training(**said), task, parameters)


@pytest.mark.parametrize("task", sorted(habits()))
def test_a_published_size_has_its_own_rate_and_every_rate_a_source(task: Task) -> None:
    for row in habits()[task].rates:
        assert of(task, row.parameters).lr == row.lr
        assert "arXiv" in row.source or "github.com" in row.source


@pytest.mark.parametrize(
    ("name", "active", "published"), [("DeepSeek-V2", 21e9, 2.4e-4), ("DeepSeek-V3", 37e9, 2.2e-4)]
)
def test_experts_that_work_on_a_token_are_the_size_that_decides(name: str, active: float, published: float) -> None:
    """Rates that the table was not made from."""
    assert of("pretrain", active).lr == pytest.approx(published, rel=0.15)


@given(TASKS, st.floats(1e6, 1e13), st.floats(1e6, 1e13))
def test_a_larger_model_is_never_trained_with_a_higher_rate(task: Task, one: float, other: float) -> None:
    small, large = sorted((one, other))
    assert of(task, large).lr <= of(task, small).lr


@given(TASKS, st.floats(1e6, 1e13))
def test_a_rate_lies_between_those_of_its_neighbours(task: Task, parameters: float) -> None:
    below, above = neighbours(habits()[task], parameters)
    assert above.lr <= rate(habits()[task], parameters) <= below.lr
    sizes = [row.parameters for row in habits()[task].rates]
    assert all(one < other for one, other in pairwise(sizes))


@given(TASKS, st.integers(1, 10**7), st.none() | st.integers(1, 10**7))
def test_a_derived_warm_up_is_shorter_than_the_decay(task: Task, iterations: int, decay: int | None) -> None:
    found = of(task, 7e9, train_iters=iterations, lr_decay_iters=decay)
    assert found.lr_warmup_iters < found.decay_iters


def test_a_long_run_warms_up_for_as_many_steps_as_published_and_a_short_one_for_a_share() -> None:
    assert of("pretrain", 7e9, train_iters=500_000).lr_warmup_iters == 2000
    assert of("pretrain", 7e9, train_iters=1000).lr_warmup_iters == 100
    assert of("sft", 7e9, train_iters=1000).lr_warmup_iters == 30


def test_the_task_decides_by_an_order_of_magnitude() -> None:
    rates = {task: of(task, 70e9).lr for task in habits()}
    assert rates == {
        "pretrain": 1.5e-4, "sft": 1e-5, "lora": 1e-4, "dpo": 5e-7, "dpo of adapters": 5e-6, "reward": 5e-6, "rl": 1e-6,
        "rl of adapters": 3e-5,
    }  # fmt: skip
    assert (of("sft", 70e9).weight_decay, of("pretrain", 70e9).weight_decay) == (0.0, 0.1)


def test_what_the_job_says_stays_and_the_lowest_rate_follows_a_given_one() -> None:
    found = of("pretrain", 7e9, lr=1e-5, lr_warmup_iters=0, weight_decay=0.3)
    assert (found.lr, found.min_lr, found.lr_warmup_iters, found.weight_decay) == (1e-5, 1e-6, 0, 0.3)
    assert found.derived == ("min_lr",)


def test_what_was_derived_is_said_with_its_source_and_nothing_of_a_job_that_says_all() -> None:
    found = of("sft", 8.03e9)
    assert found.derived == DERIVED
    (said,) = why(found, "sft", 8.03e9)
    assert said.startswith(
        "Chosen for full fine-tuning of 8.03B parameters, since the job does not state them: lr 2e-05,"
    )
    assert "Tülu 2 7B" in said
    assert "Tülu 2 13B" in said
    assert short(found, "sft", 8.03e9).startswith("lr 2e-05, min_lr 0, lr_warmup_iters 30, weight_decay 0: chosen for")
    assert "of 8.03B active parameters" in short(found, "sft", 8.03e9, "active parameters")
    given_all = of("sft", 8.03e9, lr=1e-4, min_lr=0.0, lr_warmup_iters=1, weight_decay=0.0)
    assert (why(given_all, "sft", 8.03e9), short(given_all, "sft", 8.03e9)) == ((), "")


def test_the_share_that_is_evaluated_on_is_the_second() -> None:
    assert Training().held_out == 0.05
    assert Training(split="90, 10, 0").held_out == 0.1
    assert [Training(split=text).held_out for text in ("1", "", "0,0", "a")] == [0.0] * 4


@pytest.mark.parametrize("field", ["wandb_project", "wandb_name", "tensorboard_dir"])
def test_a_name_that_a_log_cannot_have_is_refused(field: str) -> None:
    for text in ("", "a\nb", "a\0b"):
        with pytest.raises(ValidationError):
            Training(**{field: text})


def test_the_page_of_rates_is_as_it_is_generated() -> None:
    assert is_current("rates"), "python -m tools generate rates"


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

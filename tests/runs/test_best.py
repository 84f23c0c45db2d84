"""What no plan of a job can be told is said before the search, with the targets and the changes that work."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api import planning
from symconfig.descriptor.document import load_yaml_strict
from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_cluster, load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError
from symconfig.plans.plan import Plan
from symconfig.render import render, target_of, targets
from symconfig.runs import best


def _job(**fields: Any) -> Job:
    given = {"model": "m", "cluster": "h100", "gpus": 64, "global_batch_size": 256, "seq_length": 4096}
    return Job.model_validate({**given, **fields})


def _changed(name: str, **fields: Any) -> ModelDescriptor:
    """A model of the zoo with other values, by dotted name with __ for the dot."""
    data = load_model(name).model_dump(mode="json", by_alias=True, exclude_unset=True)
    for path, value in fields.items():
        section, _, leaf = path.rpartition("__")
        (data[section] if section else data)[leaf] = value
    return ModelDescriptor.model_validate(data, strict=False)


H100 = load_cluster("h100")
# Changes that no option of Megatron-LM says and that cost nothing: the same model with Megatron-LM's own value.
BY_HAND = [
    ("llama3.1-8b", {"rope_scaling__factor": 32.0}, {}),
    ("llama3.1-8b", {"rope_scaling__low_freq_factor": 2.0}, {}),
    ("llama3.1-8b", {"rope_scaling__original_max_position_embeddings": 4096}, {}),
    ("llama3.1-8b", {"query_pre_attn_scalar": 144.0}, {"megatron_version": "core_v0.16.1"}),
    ("llama3.1-8b", {"scale_embeddings": True}, {"megatron_version": "core_v0.16.1"}),
    ("deepseek-v3", {"rope_scaling__beta_fast": 64.0}, {"cluster": "h200", "gpus": 512, "global_batch_size": 4096}),
]


@pytest.fixture
def no_search(monkeypatch: pytest.MonkeyPatch) -> None:
    def searched(*_: Any, **__: Any) -> Plan:
        raise AssertionError("this was searched")

    monkeypatch.setattr(best, "solved", searched)


@pytest.mark.parametrize("name", zoo_models())
def test_a_model_of_the_zoo_can_be_told_to_its_own_target(name: str) -> None:
    model = load_model(name)
    job = best._with_target(model, H100, _job(seq_length=None))
    assert best.supported(model, H100, job, writes=True).edited == ()  # nothing is left to change by hand
    assert target_of(model, job).name in ("megatron", "deepspeed", "bridge", "transformers")


@pytest.mark.usefixtures("no_search")
def test_a_field_that_no_option_says_is_refused_before_the_search_with_who_can_say_it() -> None:
    model = _changed("llama3.1-8b", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(InfeasibleError) as caught:
        best.best_plan(model, H100, _job(target="megatron"), top=1)
    first, last = caught.value.problems
    assert (first.field, first.edit) == ("rope_scaling.rope_type", None)
    assert str(last) == (
        "target: no plan of this job can be written for it (got megatron). "
        "Try: --target accelerate or axolotl or deepspeed or llamafactory or ms-swift-deepspeed or transformers."
    )


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("target", sorted(targets()))
def test_where_no_target_can_say_it_none_is_named(target: str) -> None:
    model = _changed("llama3.1-8b", position="alibi", rope_scaling=None)
    with pytest.raises(InfeasibleError) as caught:
        best.best_plan(model, H100, _job(target=target), top=1)
    assert caught.value.problems[-1].what == "no plan of this job can be written for it, nor for any other target"


def test_a_job_that_names_no_target_is_planned_for_the_next_that_can_be_told_it() -> None:
    model = _changed("llama3.1-8b", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    found = symconfig.plan(model, "h100", 8, 64, seq_length=4096, top=1)
    assert (found.plan.job.target, found.best.target.backend) == ("deepspeed", "deepspeed")
    assert found.instead == (
        "megatron does not support this model's rope_scaling.rope_type: planned for deepspeed, which does"
    )
    assert found.to_dict()["warnings"] == [found.instead]
    assert "ds_config.json" in render(found.plan, target_of(found.plan.model, found.plan.job).name).paths()
    plain = symconfig.plan("llama3.1-8b", "h100", 8, 64, seq_length=4096, top=1)
    assert (plain.plan.job.target, plain.instead) == (None, None)


@pytest.mark.usefixtures("no_search")
def test_layers_that_no_target_trains_are_refused_with_how_to_leave_them_out() -> None:
    model = _changed("deepseek-v3.2", num_nextn_predict_layers=1)
    with pytest.raises(InfeasibleError, match="num_nextn_predict_layers: 0 in a copy of the descriptor"):
        best.best_plan(model, H100, _job(target="megatron"), top=1)


def test_a_refusal_names_the_target_that_nobody_asked_for() -> None:
    model = _changed("llama3.1-8b", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    job = _job(gpus=32, global_batch_size=25)
    with pytest.raises(InfeasibleError) as caught:
        best.best_plan(model, H100, job, top=1)
    problem, why = caught.value.problems
    assert problem.hint == "--global-batch-size 32"
    assert (why.field, why.what.partition(": ")[2]) == ("target", "planned for deepspeed, which does")
    with pytest.raises(InfeasibleError) as caught:
        best.best_plan(model, H100, job.model_copy(update={"target": "deepspeed", "backend": "deepspeed"}), top=1)
    assert [each.field for each in caught.value.problems] == [None]


@pytest.mark.usefixtures("no_search")
def test_another_framework_is_not_named_where_the_job_says_which() -> None:
    model = _changed("llama3.1-8b", rope_scaling={"rope_type": "dynamic", "factor": 2.0})
    with pytest.raises(InfeasibleError) as caught:
        best.best_plan(model, H100, _job(backend="megatron"), top=1)
    assert "deepspeed" not in str(caught.value.problems[-1].hint)
    assert "nor for any other target of megatron" in caught.value.problems[-1].what


@pytest.mark.usefixtures("no_search")
@pytest.mark.parametrize("target", sorted(targets()))
def test_a_schedule_that_cannot_be_is_bad_input_before_the_search(target: str) -> None:
    job = _job(target=target, training={"lr": 1e-5, "min_lr": 1e-4})
    with pytest.raises(InputError, match=r"training\.min_lr"):
        best.best_plan(load_model("llama3.1-8b"), H100, job, top=1)


@pytest.mark.parametrize(("name", "fields", "job"), BY_HAND)
def test_a_change_by_hand_costs_nothing(name: str, fields: dict[str, Any], job: dict[str, Any]) -> None:
    asked = {"cluster": "h100", "gpus": 64, "global_batch_size": 256, "target": "megatron", **job}
    plain = symconfig.plan(load_model(name), seq_length=4096, top=1, **asked)
    changed = symconfig.plan(_changed(name, **fields), seq_length=4096, top=1, **asked)
    assert changed.best == plain.best
    (warning,) = changed.warnings
    assert warning.edit
    assert warning.field == next(iter(fields)).replace("__", ".")
    assert changed.to_dict()["warnings"] == [str(warning)]
    assert not plain.warnings


def test_files_are_written_once_the_change_by_hand_is_said_to_be_made() -> None:
    model = _changed("llama3.1-8b", rope_scaling__factor=32.0)
    with pytest.raises(InfeasibleError, match=r"--edited rope_scaling\.factor once that is changed by hand"):
        best.best_plan(model, H100, _job(target="megatron"), top=1, writes=True)
    assert best.best_plan(model, H100, _job(), top=1, writes=True).job.target == "bridge"
    plan = best.best_plan(model, H100, _job(target="megatron"), top=1)
    assert plan.job.edited == ()
    with pytest.raises(InfeasibleError, match=r"its Llama 3 scaling always uses 8 .*By hand: in megatron/core"):
        render(plan, "megatron")
    edited = best.best_plan(model, H100, _job(target="megatron", edited=("rope_scaling.factor",)), top=1, writes=True)
    report = render(edited, "megatron")["REPORT.md"]
    assert "Only with Megatron-LM changed: in megatron/core/models/common/embeddings/rotary_pos_embedding.py" in report


@pytest.mark.usefixtures("no_search")
def test_a_field_that_needs_no_change_is_not_said_to_be_changed() -> None:
    with pytest.raises(InputError) as caught:
        best.best_plan(load_model("llama3.1-8b"), H100, _job(edited=("rope_scaling.factor",)), top=1)
    assert str(caught.value) == (
        "edited: is no field for which megatron must be edited "
        "(got rope_scaling.factor, need none: megatron supports this model as it is)."
    )


def test_the_release_that_can_say_it_is_named() -> None:
    model = _changed("llama3.1-8b", rope_scaling={"rope_type": "linear", "factor": 4.0})
    (problem,) = best.unsupported(model, H100, _job(megatron_version="core_v0.18.2"))
    assert problem.hint == "megatron_version: core_v0.19.0 or later"


def test_what_is_wrong_with_a_schedule_is_said_at_its_line_of_the_job(tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    lines = (
        "model: llama3.1-8b", "cluster: h100", "gpus: 8", "global_batch_size: 8", "training: {lr: 1e-5, min_lr: 1}",
    )  # fmt: skip
    job.write_text("\n".join(lines))
    with pytest.raises(
        InputError, match=rf"^{job}:5:30: training\.min_lr: the lowest learning rate is above the highest"
    ):
        planning.solve(load_yaml_strict(job))

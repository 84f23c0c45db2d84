"""A job's images laid over its model, plans with a tower on the first stage, and who may be told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import Images, Job
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InfeasibleError, InputError
from symconfig.graph.model import sequence
from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.file import parse_plan
from symconfig.runs.adapted import imaged

PUBLISHED = Path(__file__).parents[1] / "descriptor" / "published"
QWEN3_VL_8B, GEMMA3_4B = (
    json.loads((PUBLISHED / f"{name}.json").read_text(encoding="utf-8"))
    for name in ("qwen3-vl-8b-instruct", "gemma-3-4b-it")
)
JOB: dict[str, Any] = {"cluster": "h100", "gpus": 16, "global_batch_size": 64, "seq_length": 4096}


def _model(config: dict[str, Any]) -> ModelDescriptor:
    return import_config(config, "config.json", "m")


def _job(**fields: Any) -> Job:
    return Job.model_validate({"model": "m", **JOB, **fields}, strict=False)


def _planned(config: dict[str, Any] = QWEN3_VL_8B, **fields: Any) -> symconfig.PlanResult:
    return symconfig.plan(_model(config), **{**JOB, **fields})


def test_without_images_the_language_model_is_trained_alone() -> None:
    model = imaged(_model(QWEN3_VL_8B), _job())
    assert model.vision is None
    assert "trained on text alone" in model.notes[-1]


def test_adapters_of_a_language_model_alone_have_the_names_of_the_target_that_it_then_has() -> None:
    """With its tower it would be ms-swift's, whose layers are fused."""
    plan = _planned(GEMMA3_4B, task="lora", top=1).plan
    assert (plan.best.target.backend, plan.model.vision) == ("deepspeed", None)
    assert {"q_proj", "k_proj", "gate_proj"} <= set(plan.model.adapter.target_modules)


def test_images_are_laid_over_the_tower() -> None:
    vision = imaged(_model(QWEN3_VL_8B), _job(images={"per_sequence": 1.5, "size": 896, "frozen": "tower"})).vision
    assert (vision.images_per_sequence, vision.image_size, vision.tokens) == (1.5, 896, 784)
    assert (vision.frozen, vision.projector_frozen) == (True, False)


def test_beside_adapters_nothing_of_the_tower_is_trained() -> None:
    planned = _planned(backend="deepspeed", lora={"r": 8}, images={"per_sequence": 1})
    vision = planned.plan.model.vision
    assert not vision.trains


@pytest.mark.parametrize(
    ("config", "images", "sentence"),
    [
        (QWEN3_VL_8B, {"per_sequence": 1, "size": 900}, "image_size 900 is not divisible by patch_size 16"),
        (QWEN3_VL_8B, {"per_sequence": 17}, "17 images of 256 tokens are more than a sequence holds"),
        (GEMMA3_4B, {"per_sequence": 1, "size": 448}, "the tower of gemma3 takes images of one size"),
    ],
)
def test_images_that_the_tower_does_not_take_are_refused(
    config: dict[str, Any], images: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        imaged(_model(config), _job(images=images))


def test_a_model_without_a_tower_takes_no_images() -> None:
    text = _model(QWEN3_VL_8B).model_copy(update={"vision": None})
    with pytest.raises(InputError, match="m has no vision tower"):
        imaged(text, _job(images={"per_sequence": 1}))


def test_the_tower_lies_on_the_first_stage_and_its_work_in_the_step() -> None:
    pins = {"pp": 2, "vpp": 1, "tp": 1, "mbs": 1, "recompute": "none"}
    plain, seen = _planned(pins=pins), _planned(pins=pins, images={"per_sequence": 2, "size": 896})
    plan = seen.plan
    first, last = plan.best.stages
    assert first.chunks[0][:28] == sequence(plan.model)[:28]
    assert not any(place_of(kind).begins for kind in last.chunks[0])
    layers = [sum(map(is_layer, stage.chunks[0])) for stage in (first, last)]
    assert layers[0] < layers[1]  # the tower takes the place of layers
    assert seen.best.predicted.step_s > 1.1 * plain.best.predicted.step_s
    assert parse_plan(seen.to_json(), "plan.json").best == plan.best


def test_a_frozen_tower_is_faster_and_smaller() -> None:
    pins = {"pp": 1, "tp": 2, "mbs": 1, "recompute": "none"}
    trained, frozen = (
        _planned(pins=pins, images=Images(per_sequence=2, frozen=what)).best.predicted for what in ("none", "all")
    )
    assert frozen.step_s < trained.step_s
    assert frozen.peak_bytes < trained.peak_bytes - 2e9


@pytest.mark.parametrize("target", ["megatron", "bridge", "deepspeed", "transformers"])
def test_a_target_that_trains_no_tower_names_those_that_do(target: str) -> None:
    with pytest.raises(InfeasibleError) as error:
        _planned(target=target, task="sft", images={"per_sequence": 1})
    assert f"vision: {target} trains no vision tower" in str(error.value)
    assert "ms-swift" in str(error.value)


def test_a_tower_that_ms_swift_does_not_know_goes_to_another_target() -> None:
    assert _planned(GEMMA3_4B, task="sft", images={"per_sequence": 1}).plan.job.target == "llamafactory"


def test_what_is_rendered_says_what_is_frozen_and_how_large_images_are(tmp_path: Path) -> None:
    images = {"per_sequence": 2, "size": 896, "frozen": "tower"}
    swift = _planned(images=images, pins={"pp": 1}).write(tmp_path / "swift")
    factory = _planned(images=images, backend="deepspeed", task="sft").write(tmp_path / "factory")
    texts = {path.name: path.read_text(encoding="utf-8") for path in (*swift, *factory)}
    for line in ("model_type: qwen3_vl", "freeze_vit: true", "freeze_aligner: false", "max_pixels: 802816"):
        assert f"\n{line}\n" in texts["config.yaml"]
    assert "\nvit_gradient_checkpointing: false\n" in texts["config.yaml"]
    for line in ("freeze_vision_tower: true", "freeze_multi_modal_projector: false", "image_max_pixels: 802816"):
        assert f"\n{line}\n" in texts["train.yaml"]
    assert "\ntemplate: qwen3_vl\n" in texts["train.yaml"]


def test_layers_that_patches_enter_stay_with_the_tower() -> None:
    """mcore-bridge asserts it (model/mm_gpts/qwen3_vl.py): a later chunk is given no patches."""
    found = _planned(images={"per_sequence": 2, "size": 896}).plan.best
    assert sum(map(is_layer, found.stages[0].chunks[0])) >= 3

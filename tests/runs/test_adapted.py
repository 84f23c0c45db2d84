"""A job's adapters and images laid over its model: what they mean, what is refused, and who may be told of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import Images, Job
from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Adapter
from symconfig.errors import InfeasibleError, InputError
from symconfig.frameworks.known import BACKENDS
from symconfig.graph.model import sequence
from symconfig.graph.parts import is_layer, place_of
from symconfig.plans.file import parse_plan
from symconfig.runs.adapted import adapted, bare, imaged
from tests.sample_models import sample_model

PARTS = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"}
WHOLE = {"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}


def job(**fields: Any) -> Job:
    base = {"model": "m", "cluster": "h100", "gpus": 8, "global_batch_size": 8}
    return Job.model_validate({**base, **fields}, strict=False)


def adapter(model: str, **fields: Any) -> Adapter:
    laid, _ = adapted(load_model(model), job(**fields))
    assert laid.adapter is not None
    return laid.adapter


def problem(model: str, **fields: Any) -> str:
    with pytest.raises(InputError) as caught:
        adapted(load_model(model), job(**fields))
    return str(caught.value)


def test_task_lora_alone_has_sensible_adapters() -> None:
    found, laid = adapter("llama3.1-70b", task="lora"), adapted(load_model("llama3.1-70b"), job(task="lora"))[1]
    assert (found.method, found.r, found.lora_alpha, found.lora_dropout) == ("lora", 16, 32.0, 0.0)
    assert set(found.target_modules) == PARTS
    assert laid.task == "lora"
    assert laid.lora is not None


def test_a_section_alone_means_task_lora_and_alpha_follows_the_rank() -> None:
    laid = adapted(load_model("llama2-7b"), job(lora={"r": 64}))[1]
    assert laid.task == "lora"
    assert adapter("llama2-7b", lora={"r": 64}).lora_alpha == 128.0
    assert adapter("llama2-7b", lora={"r": 64, "alpha": 16}).lora_alpha == 16.0


@pytest.mark.parametrize(("model", "targets", "backend", "expected"), [
    ("llama3.1-8b", "all-linear", "megatron", WHOLE),
    ("llama3.1-8b", "attention", "deepspeed", {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ("llama3.1-8b", "attention", "megatron", {"qkv_proj", "o_proj"}),
    ("llama3.1-8b", "mlp", "deepspeed", {"gate_proj", "up_proj", "down_proj"}),
    ("llama3.1-8b", "q_proj,v_proj", "deepspeed", {"q_proj", "v_proj"}),
    ("llama3.1-8b", ["attention", "down_proj"], "megatron", {"qkv_proj", "o_proj", "down_proj"}),
    ("llama3.1-8b", "linear_qkv,linear_fc1", "megatron", {"qkv_proj", "gate_up_proj"}),
    ("llama3.1-8b", "linear_q,linear_fc1_up", "megatron", {"q_proj", "up_proj"}),
    ("gpt3-175b", "linear_fc1", "megatron", {"up_proj"}),
    ("gpt3-175b", "all-linear", "deepspeed", {"qkv_proj", "o_proj", "up_proj", "down_proj"}),  # GPT2's c_attn is fused
    ("qwen-7b", "all-linear", "deepspeed", {"c_attn", "c_proj", "w1", "w2"}),
    ("qwen-7b", "all-linear", "megatron", {"qkv_proj", "c_proj", "gate_up_proj"}),
    ("mixtral-8x7b", "all-linear", "deepspeed", {"q_proj", "k_proj", "v_proj", "o_proj"}),
    ("deepseek-v3", "attention", "deepspeed", {"q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}),
])  # fmt: skip
def test_targets_are_what_the_model_and_the_framework_have(
    model: str, targets: Any, backend: str, expected: set[str]
) -> None:
    found = adapter(model, lora={"targets": targets}, backend=backend)
    assert set(found.target_modules) == expected


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("model", ["llama3.1-8b", "qwen-7b", "gpt3-175b", "mixtral-8x7b", "gpt-oss-120b"])
def test_the_usual_adapters_are_refused_by_no_framework(model: str, backend: str) -> None:
    laid, _ = adapted(load_model(model), job(task="lora", backend=backend))
    assert BACKENDS[backend].refused_adapters(laid) == ()


def test_the_framework_of_a_target_decides_as_the_backend_does() -> None:
    assert set(adapter("llama3.1-8b", task="lora", target="bridge").target_modules) == WHOLE
    assert set(adapter("llama3.1-8b", task="lora", target="llamafactory").target_modules) == PARTS


def test_adapters_laid_twice_are_laid_once() -> None:
    once = adapted(load_model("llama2-7b"), job(task="lora"))
    assert adapted(*once) == once
    assert bare(*once) == load_model("llama2-7b")


def test_a_model_with_adapters_of_its_own_keeps_them() -> None:
    own = load_model("qwen2.5-7b-lora")
    assert adapted(own, job())[0] is own
    assert bare(own, job(task="lora")) is own
    agreeing = {"r": 64, "alpha": 16, "targets": "all-linear"}
    assert adapted(own, job(lora=agreeing, backend="deepspeed"))[0] == own
    assert adapted(own, job(lora={"r": 64}, backend="deepspeed"))[0] == own


def test_a_contradiction_names_every_field_that_was_given() -> None:
    text = problem("qwen2.5-7b-lora", lora={"r": 16, "targets": "q_proj"}, backend="deepspeed")
    assert "lora.r: qwen2.5-7b-lora has adapters of its own, with other r (got 16, need 64)." in text
    assert "lora.targets: qwen2.5-7b-lora has adapters of its own, with other targets (got q_proj, need " in text
    assert "lora.alpha" not in text


def test_a_job_that_trains_no_adapters_may_not_ask_for_some() -> None:
    assert problem("llama2-7b", task="sft", lora={}) == (
        "task: trains no adapters, and the job asks for some (got sft, need lora or dpo or kto or reward or rl)."
    )


def test_what_a_model_lacks_is_named_with_what_it_has() -> None:
    text = problem("llama3.1-8b", lora={"targets": "attention,q_porj,c_attn"}, backend="deepspeed")
    assert "lora.targets: llama3.1-8b has no such linear layers (got q_porj, need some of all-linear, attention" in text
    assert "Try: q_proj." in text
    assert "(got c_attn," in text
    assert "gate_proj" not in problem("gpt3-175b", lora={"targets": "gate_proj"}).split("need")[1]


@pytest.mark.parametrize("target", ["mlp", "gate_proj"])
def test_adapters_beside_experts_are_refused_with_those_that_are_planned(target: str) -> None:
    text = problem("mixtral-8x7b", lora={"targets": target})
    assert "adapters beside experts are not planned" in text
    assert "Try: attention." in text


def test_only_what_a_class_has_apart_is_adapted_apart() -> None:
    refused = BACKENDS["deepspeed"].refused_adapters
    phi, llama = (
        sample_model("llama2-13b", model_type=kind, adapter={"r": 8, "lora_alpha": 8.0, "target_modules": names})
        for kind, names in (("phi3", ["q_proj", "o_proj"]), ("llama", ["qkv_proj"]))
    )
    assert refused(phi) == ("Transformers' class of phi3 has q_proj in one layer, which adapters know as qkv_proj",)
    assert refused(llama) == ("Transformers' class of llama has no fused qkv_proj",)


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

"""A job's adapters over its model: what its targets mean, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import load_model
from symconfig.descriptor.sections import Adapter
from symconfig.errors import InputError
from symconfig.frameworks.known import BACKENDS
from symconfig.runs.adapted import adapted, bare
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


def test_a_contradiction_names_every_field_and_both_values() -> None:
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

"""Models that scripts call by name: their parameters, and the folders that are called after them."""

from __future__ import annotations

import pytest

from symconfig.existing.recover.zoo import by_name, model_of, models
from symconfig.graph.model import parameters

# Billions of parameters as the models' cards on Hugging Face have them.
CARDS = {
    "Qwen/Qwen2-7B": 7.62, "Qwen/Qwen2-72B": 72.7, "Qwen/Qwen2.5-0.5B": 0.49, "Qwen/Qwen2.5-1.5B": 1.54,
    "Qwen/Qwen2.5-3B": 3.09, "Qwen/Qwen2.5-14B": 14.7, "Qwen/Qwen2.5-32B": 32.5, "Qwen/Qwen3-0.6B": 0.6,
    "Qwen/Qwen3-1.7B": 1.7, "Qwen/Qwen3-14B": 14.8, "deepseek-ai/deepseek-llm-7b": 6.91,
    "mistralai/Mistral-Nemo-2407": 12.2, "Qwen/Qwen3.5-35B-A3B": 35.0, "Qwen/Qwen3.5-122B-A10B": 122.0,
    "Qwen/Qwen3.5-397B-A17B": 397.0, "Qwen/Qwen3.5-9B": 9.0, "openai/gpt-oss-20b": 20.9, "tencent/Hy3": 295.0,
    "moonshotai/Moonlight-16B-A3B": 16.0, "deepseek-ai/DeepSeek-V4-Flash": 284.0, "zai-org/GLM-4-9B-0414": 9.4,
}  # fmt: skip


@pytest.mark.parametrize("name", models())
def test_a_known_model_has_the_parameters_of_its_card(name: str) -> None:
    model, _ = model_of(name)
    assert model.huggingface_id == name
    if name in CARDS:
        assert parameters(model).total / 1e9 == pytest.approx(CARDS[name], rel=0.025)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Qwen/Qwen3-8B", "qwen3-8b"),
        ("/root/Qwen3-30B-A3B-FP8/", "qwen3-30b-a3b"),
        ("/models/Qwen2.5-3B-Instruct", "Qwen2.5-3B"),
        ("Qwen/Qwen3-4B-Instruct-2507", "Qwen3-4B-2507"),
        ("/hdfs/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16", "nemotron-3-nano-30b-a3b"),
        ("somebody/else", None),
    ],
)
def test_a_folder_may_be_called_after_a_model(given: str, name: str | None) -> None:
    found = by_name(given, None)
    assert (None if found is None else found[0].name) == name

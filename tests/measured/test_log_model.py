"""The arguments that a log prints describe the model that was rendered, in every field."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.recover.zoo import meaning
from symconfig.measured.log_row import log_model
from symconfig.measured.training_log import TrainingLog, read_log
from tests.measured.log_samples import megatron_log, plan_log, write
from tests.sample_plans import sample_plan

MODELS = (
    "llama2-13b",
    "llama3.1-70b",
    "qwen2.5-7b",
    "qwen3-30b-a3b",
    "mixtral-8x7b",
    "deepseek-v3",
    "gpt-oss-120b",
    "gpt3-175b",
)


def log_of(folder: Path, text: str) -> TrainingLog:
    return read_log(write(folder, text))


@pytest.mark.parametrize("name", MODELS)
def test_the_model_of_a_plan_is_read_back_whole(tmp_path: Path, name: str) -> None:
    plan = sample_plan(name)
    found = log_model(log_of(tmp_path, plan_log(plan)))
    assert meaning(found) == meaning(plan.model)


def test_a_short_print_is_read_over_the_parsers_defaults(tmp_path: Path) -> None:
    found = log_model(log_of(tmp_path, megatron_log()))
    assert (found.num_hidden_layers, found.num_key_value_heads, found.intermediate_size) == (32, 8, 14336)
    assert (found.vocab_size, found.hidden_act, found.position, found.norm) == (50257, "silu", "learned", "layernorm")


def test_a_model_that_no_descriptor_describes_is_refused_by_its_name(tmp_path: Path) -> None:
    log = log_of(tmp_path, megatron_log())
    strange = replace(log, arguments={**log.arguments, "is_hybrid_model": True})
    with pytest.raises(InputError) as error:
        log_model(strange)
    assert [problem.field for problem in error.value.problems] == ["is_hybrid_model"]
    assert all(problem.file == log.path and problem.hint for problem in error.value.problems)

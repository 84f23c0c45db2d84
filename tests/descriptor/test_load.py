"""From a name or a path to a descriptor and back to a file; what a wrong file is told; copies forget nothing."""

from __future__ import annotations

import os
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from symconfig.descriptor.document import load_yaml_strict, parse_yaml_strict
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.job import PIN_NAMES, Job, Training
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.strict import Strict, validate
from symconfig.descriptor.tuning import with_batch
from symconfig.descriptor.write import descriptor_yaml
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.descriptor.small_configs import KINDS, tiny_config

SPELLINGS = [
    *("llama2-7b", "llama2-13b", "llama2-70b", "llama3.1-8b", "llama3.1-70b", "llama3.1-405b"),
    *("mixtral-8x7b", "mixtral-8x22b", "qwen-7b", "qwen1.5-72b", "qwen2.5-7b", "qwen2.5-72b", "qwen3-32b"),
    *("qwen3-30b-a3b", "qwen3-235b-a22b", "deepseek-v3", "gpt-oss-120b", "gpt3-175b"),
    *("glm-4.5", "glm-4.5-air", "kimi-k2", "minimax-m2", "deepseek-v3.2", "llama4-scout", "llama4-maverick"),
    *("qwen-7b-lora", "qwen2.5-7b-lora", "llama2-70b-lora"),
    *("llama3.2-1b", "llama3.2-3b", "qwen3-4b", "qwen3-8b", "mistral-7b", "mistral-small-24b", "phi-4"),
    *("gemma2-9b", "gemma3-27b", "qwen3-next-80b-a3b", "qwen3.5-27b", "nemotron-h-56b", "nemotron-3-nano-30b-a3b"),
    *("granite-4.0-h-small", "olmo2-32b", "smollm3-3b", "seed-oss-36b"),
    *("qwen3.5-35b-a3b", "gemma4-26b-a4b", "nemotron-3-super-120b-a12b"),
]
MODEL = """schema: symconfig.model/1
name: mine
source: measured
model_type: llama
hidden_size: 64
intermediate_size: 128
num_hidden_layers: 2
num_attention_heads: 4
num_key_value_heads: 2
head_dim: 16
vocab_size: 100
max_position_embeddings: 64
"""
ADAPTER = """schema: symconfig.model/1
name: a
source: s
base: {base}
adapter:
  r: 4
  lora_alpha: 8.0
  target_modules: [q_proj]
"""


def _write(folder: Path, text: str, name: str = "mine.yaml") -> str:
    path = folder / name
    path.write_text(text)
    return str(path)


def _lines(folder: Path, text: str) -> list[str]:
    """The problems of a model file, without the folder."""
    with pytest.raises(InputError) as caught:
        load_model(_write(folder, text))
    return [str(problem).removeprefix(str(folder) + os.sep) for problem in caught.value.problems]


def test_the_zoo_has_the_names_that_scripts_rely_on() -> None:
    assert set(SPELLINGS) <= set(zoo_models())


@pytest.mark.parametrize("name", zoo_models())
def test_every_zoo_model_loads_under_its_own_name_with_a_source(name: str) -> None:
    model = load_model(name)
    assert model.name == name
    assert "http" in model.source or "arXiv" in model.source
    left = {field: text for field, text in model.model_dump().items() if "fill in" in str(text)}
    assert not left, f"model_zoo/models/{name}.yaml: to be filled in: {left}"


def test_an_unknown_name_gets_the_nearest_ones_and_the_command_that_lists_all() -> None:
    with pytest.raises(InputError) as caught:
        load_model("lama2-13b")
    message = str(caught.value)
    assert "llama2-13b" in message.split("Try: ")[1]
    assert "symconfig list models" in message
    assert sum(name in message for name in zoo_models()) <= 3


@pytest.mark.parametrize(
    "name", ["", "\0", "x" * 5000, "$(reboot)", '"; rm -rf ~', "no/such.yaml", "/dev/null", "/", "é"]
)
def test_a_name_that_is_none_is_a_message(name: str) -> None:
    with pytest.raises(InputError):
        load_model(name)


def test_a_folder_means_its_config_json(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no config\.json"):
        load_model(str(tmp_path))
    _write(tmp_path, '{"model_type": "llama"}', "config.json")
    assert load_model(str(tmp_path)).model_type == "llama"


def test_every_problem_of_a_file_has_its_line_and_what_is_needed(tmp_path: Path) -> None:
    text = (
        MODEL.replace("hidden_size: 64", "hidden_size: -64", 1)
        .replace("vocab_size: 100", "vocab_size: 1e5")
        .replace("num_hidden_layers", "num_hiden_layers")
        .replace("head_dim: 16", "head_dim: '16'")
        + "norm: layer_norm\nattention: {a: 1}\nexperts:\n  num_experts: 0\n"
    )
    assert _lines(tmp_path, text) == [
        "mine.yaml:1:1: num_hidden_layers: this field is missing.",
        "mine.yaml:5:14: hidden_size: out of range (got -64, need > 0).",
        "mine.yaml:7:1: num_hiden_layers: unknown field. Try: num_hidden_layers.",
        "mine.yaml:10:11: head_dim: wrong value (got \"16\", need a whole number).",
        "mine.yaml:11:13: vocab_size: wrong value (got 100000.0, need a whole number).",
        "mine.yaml:13:7: norm: wrong value (got \"layer_norm\", need 'rmsnorm' or 'layernorm'). Try: layernorm.",
        "mine.yaml:14:12: attention: wrong value (got {\"a\": 1}, need 'gqa' or 'mla').",
        "mine.yaml:15:1: experts.num_experts_per_tok: this field is missing.",
        "mine.yaml:15:1: experts.moe_intermediate_size: this field is missing.",
        "mine.yaml:15:1: experts.norm_topk_prob: this field is missing.",
        "mine.yaml:16:16: experts.num_experts: out of range (got 0, need > 0).",
    ]  # fmt: skip


def test_fields_that_do_not_go_together_are_named_with_their_line(tmp_path: Path) -> None:
    text = MODEL.replace("num_key_value_heads: 2", "num_key_value_heads: 3") + "attention: mla\n"
    lines = _lines(tmp_path, text)
    assert "mine.yaml:8:22: num_attention_heads: 4 is not divisible by num_key_value_heads 3." in lines
    assert any("attention" in line and "latent" in line for line in lines)


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ("rope_scaling: {rope_type: llama3, factor: 8.0}", "low_freq_factor is missing, rope_type llama3 needs it"),
        ("rope_scaling: {rope_type: linear, factor: 2.0, beta_fast: 1.0}", "rope_scaling.beta_fast: has no meaning"),
        ("rope_scaling: {rope_type: ntk, factor: 2.0}", "13:27: rope_scaling.rope_type: wrong value"),
        ("sliding_window_pattern: [true, false]", "sliding_window_pattern: needs sliding_window"),
        ("sliding_window: 8\nsliding_window_pattern: [true]", "sliding_window_pattern: has 1 entries for 2 layers"),
    ],
)
def test_a_section_that_makes_no_sense_is_refused(tmp_path: Path, section: str, message: str) -> None:
    assert any(message in line for line in _lines(tmp_path, MODEL + section + "\n"))


def test_rope_turns_pairs_of_channels(tmp_path: Path) -> None:
    assert any("rope turns pairs" in line for line in _lines(tmp_path, MODEL.replace("head_dim: 16", "head_dim: 15")))


@pytest.mark.parametrize("text", ["just text", "[1, 2]", "3", "- a\n- b\n"])
def test_a_file_that_is_no_section_is_a_message(tmp_path: Path, text: str) -> None:
    assert "must hold" in _lines(tmp_path, text)[0]


def test_an_adapter_is_its_base_and_more(tmp_path: Path) -> None:
    _write(tmp_path, MODEL, "base.yaml")
    model = load_model(_write(tmp_path, ADAPTER.format(base="base.yaml"), "adapter.yaml"))
    assert (model.name, model.hidden_size) == ("a", 64)
    assert model.adapter.r == 4
    assert load_model(_write(tmp_path, ADAPTER.format(base="llama2-7b"), "b.yaml")).hidden_size == 4096


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ADAPTER.format(base="mine.yaml"), "the base of an adapter must be a whole model"),
        (ADAPTER.format(base="llama2-70b-lora"), "the base of an adapter must be a whole model"),
        (ADAPTER.format(base="lama2-7b"), "mine.yaml:4:7: base: the base model cannot be loaded (got lama2-7b)"),
        (ADAPTER.format(base="llama2-7b") + "hidden_size: 3\n", "mine.yaml:9:1: hidden_size: unknown field"),
        (ADAPTER.format(base="qwen-7b"), "target_modules: q_proj is no module of qwen"),
        (ADAPTER.format(base="llama2-7b").replace("q_proj", "x_proj"), "adapter.target_modules[0]: wrong value"),
        (ADAPTER.format(base="llama2-7b").replace("[q_proj]", "[]"), "at least one entry"),
        (ADAPTER.format(base="llama2-7b").replace("r: 4", "r: 0"), "adapter.r: out of range (got 0, need > 0)"),
    ],
)
def test_a_wrong_adapter_says_what_is_wrong(tmp_path: Path, text: str, message: str) -> None:
    assert any(message in line for line in _lines(tmp_path, text))


def job_of(path: Path) -> Job:
    return validate(with_batch(load_yaml_strict(path)), Job)


def test_a_job_is_read_and_its_pins_are_text(tmp_path: Path) -> None:
    text = (
        "model: llama2-13b\ncluster: a100-80gb\ngpus: auto\nglobal_batch_size: 1024\n"
        "pins: {tp: 8, pp: 2..8, sp: true}\n"
    )
    job = job_of(_write(tmp_path, text, "job.yaml"))
    assert job.gpus == "auto"
    assert job.pins == {"tp": "8", "pp": "2..8", "sp": "true"}


def test_all_problems_of_a_job_come_at_once(tmp_path: Path) -> None:
    text = (
        "model: 3\ngpus: many\nglobal_batch_size: 1e3\npins: {tq: 8}\nprecision: bf61\n"
        "limits: {memory_margin: 2}\ntraining:\n  lr: 3e-4\n  steps: 5\n"
    )
    with pytest.raises(InputError) as caught:
        job_of(_write(tmp_path, text, "job.yaml"))
    lines = [str(problem).removeprefix(str(tmp_path) + os.sep) for problem in caught.value.problems]
    assert lines == [
        "job.yaml:1:1: cluster: this field is missing.",
        "job.yaml:1:8: model: wrong value (got 3, need text).",
        "job.yaml:2:7: gpus: wrong value (got \"many\", need a whole number or 'auto').",
        "job.yaml:3:20: global_batch_size: wrong value (got 1000.0, need a whole number).",
        "job.yaml:4:12: pins.tq: cannot be pinned, need one of " + ", ".join(PIN_NAMES) + ".",
        "job.yaml:5:12: precision: wrong value (got \"bf61\", need 'bf16', 'fp16', 'fp8', 'mxfp8', 'nvfp4' "
        "or 'auto'). Try: bf16.",
        "job.yaml:6:25: limits.memory_margin: out of range (got 2, need < 0.9).",
        "job.yaml:9:3: training.steps: unknown field (need one of "
        + ", ".join(sorted(Training.model_fields))
        + ").",
    ]  # fmt: skip


HOSTILE = [
    "no",
    "1e5",
    "~",
    "a: b",
    "# c",
    "$(reboot)",
    '"; rm -rf ~',
    "'",
    "\n",
    "\x7f\x85\u2028",
    "\ufeff😀",
    " ",
    "- x",
]


def _read(text: str) -> ModelDescriptor:
    return validate(parse_yaml_strict(text, "written.yaml"), ModelDescriptor)


@pytest.mark.parametrize("name", zoo_models())
def test_a_zoo_model_is_read_back(name: str) -> None:
    model = load_model(name)
    assert _read(descriptor_yaml(model)) == model


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_is_read_back(kind: str) -> None:
    model = import_config(tiny_config(kind, 0), "config.json", "tiny")
    assert _read(descriptor_yaml(model)) == model


@given(st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=200))
def test_any_name_is_read_back(name: str) -> None:
    model = load_model("llama2-7b").model_copy(update={"name": name, "notes": (name,)})
    text = descriptor_yaml(model)
    assert _read(text) == model
    plain: Any = yaml.safe_load(text)
    assert plain["name"] == name


def test_only_what_differs_from_a_default_is_written() -> None:
    text = descriptor_yaml(load_model("llama2-7b"))
    assert "norm:" not in text
    assert "notes" not in text
    assert len(text.splitlines()) < 16


DERIVED = [name for name, value in vars(ModelDescriptor).items() if isinstance(value, cached_property)]
CHANGES: list[tuple[str, dict[str, Any]]] = [
    ("llama3.1-8b", {"num_hidden_layers": 16}),
    ("mixtral-8x7b", {"experts": None}),
    ("gemma3-27b", {"sliding_window": None, "sliding_window_pattern": None}),
]


def asked(model: ModelDescriptor) -> list[object]:
    return [getattr(model, name) for name in DERIVED]


@pytest.mark.parametrize(("name", "change"), CHANGES)
@pytest.mark.parametrize("deep", [False, True])
def test_nothing_that_was_worked_out_before_is_kept(name: str, change: dict[str, Any], deep: bool) -> None:
    model = load_model(name)
    asked(model)
    copied = model.model_copy(update=change, deep=deep)
    fresh = ModelDescriptor.model_construct(**{field: getattr(copied, field) for field in ModelDescriptor.model_fields})
    assert asked(copied) == asked(fresh) != asked(model)
    assert parameters(copied) == parameters(fresh) != parameters(model)


def test_a_section_inside_a_descriptor_forgets_as_well() -> None:
    class Section(Strict):
        size: int

        @cached_property
        def double(self) -> int:
            return 2 * self.size

    first = Section(size=2)
    assert first.double == 4
    assert first.model_copy(update={"size": 3}).double == 6
    assert first.double == 4

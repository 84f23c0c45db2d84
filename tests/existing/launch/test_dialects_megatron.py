"""Megatron-LM's own YAML, --yaml-cfg."""

from __future__ import annotations

import pytest

from symconfig.existing.launch.dialects.documents import dialect_of
from symconfig.existing.launch.dialects.translate import READ, table_with
from tests.existing.launch.summary import options, places_hold, read_yaml, unread

YAML_CFG = """\
language_model:
  num_layers: 16
  hidden_size: 1024
  num_attention_heads: 8
  num_query_groups: null
  ffn_hidden_size: 4096
  add_bias_linear: False
  gated_linear_unit: True
  activation_func: swiglu
  layernorm_zero_centered_gamma: True
  persist_layer_norm: False
  bias_activation_fusion: False
  num_moe_experts: null
  fp8: null
model_parallel:
  tensor_model_parallel_size: ${TP}
  sequence_parallel: True
  bf16: True
  pipeline_dtype: null
  cpu_offloading: False
  cpu_offloading_num_layers: 0
micro_batch_size: 2
global_batch_size: 64
rampup_batch_size: [16, 16, 5000]
swiglu: True
untie_embeddings_and_output_weights: True
use_distributed_optimizer: False
lr: 2.0e-4
train_iters: 100
profile_ranks: [0]
mystery_knob: 3
"""


def test_a_file_for_yaml_cfg() -> None:
    reading = read_yaml(YAML_CFG, TP="2")
    assert reading.format == "megatron yaml"
    assert options(reading) == [
        "--num-layers 16",
        "--hidden-size 1024",
        "--num-attention-heads 8",
        "--ffn-hidden-size 4096",
        "--disable-bias-linear",
        "--swiglu",
        "--apply-layernorm-1p",
        "--no-persist-layer-norm",
        "--no-bias-swiglu-fusion",
        "--tensor-model-parallel-size 2",
        "--sequence-parallel",
        "--bf16",
        "--micro-batch-size 2",
        "--global-batch-size 64",
        "--rampup-batch-size 16 16 5000",
        "--untie-embeddings-and-output-weights",
        "--lr 2.0e-4",
        "--train-iters 100",
        "--profile-ranks 0",
    ]
    assert unread(reading, matters=False) == ["31 mystery_knob: 3: has no option of Megatron-LM that says it"]
    assert reading.complete
    assert places_hold(reading)


def test_a_setting_knows_its_key_and_its_value() -> None:
    reading = read_yaml(YAML_CFG)
    heads = next(setting for setting in reading.settings if setting.name == "--num-attention-heads")
    assert heads.spelled == "language_model.num_attention_heads"
    assert reading.texts[0].at(heads.place) == "num_attention_heads: 8"
    assert reading.texts[0].at(heads.values[0].place) == "8"
    dark = next(setting for setting in reading.settings if setting.name == "--tensor-model-parallel-size")
    assert dark.values[0].unknown == "depends on the environment variable TP"


def test_a_switch_from_the_environment_is_one() -> None:
    source = "model_parallel:\n  sequence_parallel: ${SP}\n  tp_comm_overlap: $OVERLAP\n"
    assert options(read_yaml(source, SP="false", OVERLAP="true")) == ["--tp-comm-overlap"]


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        ({"language_model": {}}, "megatron yaml"),
        ({"num_layers": 1, "hidden_size": 2, "lr": 3}, "megatron yaml"),
        ({"model": {}}, "overrides"),
        ({"model_name_or_path": "x", "per_device_train_batch_size": 1}, "trainer"),
        ({"services": {}}, None),
        ({"model": "x"}, None),
        ([1], None),
        ("text", None),
    ],
)
def test_which_dialect_it_is(data: object, dialect: str | None) -> None:
    assert dialect_of(data) == dialect


def test_what_is_renamed_leads_to_options_that_there_are() -> None:
    named = {read for read in READ.values() if isinstance(read, str) and read}
    assert {dest for dest in named if table_with(dest) is None} == set()

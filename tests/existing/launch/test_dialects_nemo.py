"""Megatron-Bridge and NeMo 2: sections of YAML, and overrides, in Megatron-LM's options."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from symconfig.existing.launch.dialects.override import entries_of, is_override, overrides_apart
from symconfig.existing.launch.dialects.translate import READ, table_with
from symconfig.existing.launch.files import dialect_of, read_sections
from symconfig.existing.launch.reading import Setting, Word
from symconfig.existing.launch.text import Text
from tests.existing.launch.summary import options, places_hold, read_yaml, unread

NEMO_2 = """\
trainer:
  num_nodes: 6
  devices: 8
  max_steps: 900
  strategy:
    tensor_model_parallel_size: 4
    virtual_pipeline_model_parallel_size: 2
model:
  config:
    seq_length: 4096
    max_position_embeddings: ${.seq_length}
    num_layers: 24
    share_embeddings_and_output_weights: false
data:
  micro_batch_size: 2
  seq_length: ${model.config.seq_length}
"""


def test_nemo_2() -> None:
    reading = read_yaml(NEMO_2)
    assert options(reading) == [
        "--train-iters 900",
        "--tensor-model-parallel-size 4",
        "--num-virtual-stages-per-pipeline-rank 2",
        "--seq-length 4096",
        "--max-position-embeddings 4096",
        "--num-layers 24",
        "--untie-embeddings-and-output-weights",
        "--micro-batch-size 2",
    ]
    assert (reading.world.gpus, reading.world.nodes, reading.world.gpus_per_node) == (48, 6, 8)
    assert reading.unread == ()
    assert places_hold(reading)


def test_a_reference_keeps_the_bytes_that_it_leads_to_and_its_own_place() -> None:
    reading = read_yaml(NEMO_2)
    found = next(setting for setting in reading.settings if setting.name == "--max-position-embeddings")
    word = found.values[0]
    assert (word.pieces[0].place.line, word.place.line) == (10, 11)
    assert word.pieces[0].variables == ("${.seq_length}",)


BRIDGE = """\
model:
  tensor_model_parallel_size: 2
  expert_model_parallel_size: 8
  num_moe_experts: 64
  activation_func:
    _target_: torch.nn.functional.silu
    _call_: false
  gated_linear_unit: true
  pipeline_model_parallel_layout: [[embedding, decoder], [decoder, decoder], [decoder, loss]]
  moe_layer_freq: [0, 1, 1, 1]
  recompute_modules: [core_attn, moe_act]
  init_method_std: 0.01
train:
  micro_batch_size: 1
  global_batch_size: 256
optimizer:
  use_distributed_optimizer: true
ddp:
  grad_reduce_in_fp32: false
  overlap_param_gather: true
mixed_precision: bf16_with_fp8_current_scaling_mixed
peft: null
logger:
  log_interval: 5
"""


def test_megatron_bridge() -> None:
    reading = read_yaml(BRIDGE)
    assert options(reading) == [
        "--tensor-model-parallel-size 2",
        "--expert-model-parallel-size 8",
        "--num-experts 64",
        "--swiglu",
        "--pipeline-model-parallel-layout Et|tt|tL",
        "--moe-layer-freq [0,1,1,1]",
        "--recompute-modules core_attn moe_act",
        "--init-method-std 0.01",
        "--micro-batch-size 1",
        "--global-batch-size 256",
        "--use-distributed-optimizer",
        "--grad-reduce-in-bf16",
        "--overlap-param-gather",
        "--bf16",
        "--fp8-format hybrid",
        "--fp8-recipe tensorwise",
        "--first-last-layers-bf16",
        "--num-layers-at-start-in-bf16 1",
        "--num-layers-at-end-in-bf16 1",
        "--fp8-param-gather",
    ]
    assert reading.unread == ()


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("peft: {dim: 16}", "peft.dim: 16: has no option of Megatron-LM that says it"),
        ("mixed_precision: int3", "mixed_precision: int3: is no precision that is known here"),
        ("model: {activation_func: sine}", "is no activation"),
        ("model: {fsdp: true}", "model.fsdp: True"),
        ("model: {pipeline_model_parallel_layout: [[head]]}", "is no layout"),
        ("model: {normalization: weird}", "is none of rmsnorm"),
    ],
)
def test_what_changes_the_model_and_has_no_option_matters(line: str, says: str) -> None:
    reading = read_yaml(f"train: {{micro_batch_size: 1}}\n{line}\n")
    assert any(says.lower() in item.lower() for item in unread(reading, matters=True)), reading.unread
    assert not reading.complete


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("${oc.env:LAYERS}", "depends on the environment variable LAYERS"),
        ("${model.nowhere}", "which nothing in this file says"),
        ("${.num_layers}", "leads in a circle"),
        ("${eval:1+1}", "which is not worked out"),
        ("???", "must be given on the command line"),
    ],
)
def test_a_value_from_elsewhere_is_not_known(value: str, why: str) -> None:
    reading = read_yaml(f"model:\n  hidden_size: 64\n  num_layers: '{value}'\n")
    assert options(reading) == ["--hidden-size 64", "--num-layers ?"]
    assert why in str(reading.settings[1].values[0].unknown)


def test_a_long_chain_of_references_is_no_circle() -> None:
    chain = "".join(f"  x{index}: '${{.x{index + 1}}}'\n" for index in range(30))
    reading = read_yaml(f"model:\n  num_layers: '${{.x0}}'\n{chain}  x30: 12\n")
    assert "after too many references to references" in str(reading.settings[0].values[0].unknown)


def test_references_that_multiply_end() -> None:
    lines = "".join(f"  x{index}: '{f'${{.x{index + 1}}}' * 10}'\n" for index in range(18))
    reading = read_yaml(f"model:\n{lines}  x18: y\n  tokenizer_model: ${{.x0}}\n  num_layers: 2\n")
    assert options(reading) == ["--tokenizer-model ?", "--num-layers 2"]


def test_an_environment_variable_that_is_given_or_has_a_default_is_known() -> None:
    source = "model: {num_layers: '${oc.env:LAYERS,12}', hidden_size: '${oc.env:WIDTH}'}\n"
    reading = read_yaml(source, WIDTH="512")
    assert options(reading) == ["--num-layers 12", "--hidden-size 512"]


def overridden(source: str, line: str) -> list[str]:
    """Options of a file under the overrides of a command line, of a recipe runner's too."""
    text = Text("<arguments>", line.encode())
    tree = read_yaml(source).tree if source else None
    overrides = tuple(entries_of(tuple(overrides_apart([loose(text)])), runner=True))
    reading = read_sections(tree, {}, overrides)
    assert places_hold(replace(reading, texts=(*reading.texts, text)))
    return options(reading)


def loose(text: Text) -> Setting:
    """The words of a line, as those that belong to no option."""
    words = []
    for match in re.finditer(rb"\S+", text.data):
        place = text.place(match.start(), match.end())
        words.append(Word.of(text.at(place), place, literal=True))
    return Setting("", "", tuple(words), text.place(0, len(text.data)))


def test_overrides_alone() -> None:
    assert overridden(
        "",
        "model.tensor_model_parallel_size=8 ++train.global_batch_size=512 +model.recompute_modules=[mlp,moe] "
        "trainer.strategy.pipeline_model_parallel_size=4 model.sequence_parallel=True optimizer.lr='1e-4' "
        "model.bias_dropout_fusion=false dataset.path=/x=y",
    ) == [
        "--tensor-model-parallel-size 8",
        "--global-batch-size 512",
        "--recompute-modules mlp moe",
        "--pipeline-model-parallel-size 4",
        "--sequence-parallel",
        "--lr 1e-4",
        "--no-bias-dropout-fusion",
    ]


def test_overrides_replace_take_away_and_are_referred_to() -> None:
    source = "model:\n  num_layers: 4\n  seq_length: 128\n  max_position_embeddings: ${.seq_length}\ntrain: {seed: 1}\n"
    assert overridden(source, "model.seq_length=256 ~model.num_layers model.hidden_size=64") == [
        "--seq-length 256",
        "--max-position-embeddings 256",
        "--seed 1",
        "--hidden-size 64",
    ]


@pytest.mark.parametrize("word", ["--lr=3", "a=b", "lr=3", "path/to.x=1", "model", "model.x", "x.model.y=2", "=", ""])
def test_what_is_no_override(word: str) -> None:
    assert not is_override(word)


def test_an_override_among_the_values_of_an_option_is_none_of_them() -> None:
    text = Text("<arguments>", b"--recipe otter model.num_layers=5 ~train.seed")
    found = list(overrides_apart([replace(loose(text), name="--recipe", spelled="--recipe")]))
    assert [(one.name, one.spelled, [word.text for word in one.values]) for one in found] == [
        ("--recipe", "--recipe", ["--recipe", "otter"]),
        ("model.num_layers", "model.num_layers", ["5"]),
        ("train.seed", "~train.seed", []),
    ]
    assert [text.at(one.place) for one in found] == ["--recipe otter", "model.num_layers=5", "~train.seed"]


def test_short_options_of_a_recipe_runner_go_behind_what_is_said_in_full() -> None:
    text = Text("<arguments>", b"-tp 2 -mb 4 model.tensor_model_parallel_size=8")
    words = [
        Word.of(text.at(place), place, literal=True)
        for place in (text.place(4, 5), text.place(10, 11), text.place(12, len(text.data)))
    ]
    settings = (
        Setting("-tp", "-tp", (words[0],), text.place(0, 5)),
        Setting("-mb", "-mb", tuple(words[1:]), text.place(6, len(text.data))),
    )
    for runner in (True, False):
        reading = read_sections(None, {}, tuple(entries_of(tuple(overrides_apart(settings)), runner)))
        both = ["--micro-batch-size 4", "--tensor-model-parallel-size 8"]
        assert sorted(options(reading)) == (both if runner else both[1:])


@pytest.mark.parametrize(
    ("data", "dialect"),
    [
        ({"num_layers": 1, "hidden_size": 2, "lr": 3}, None),
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

"""JSONs and arguments as people have them are read as their programs read them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from symconfig.cost.stages import Offload
from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed import optimizer_of, run
from symconfig.existing.recover.run import Run, Supplied
from symconfig.formats.deepspeed import zero_of
from symconfig.render import render
from symconfig.solve.predict import predict
from tests.existing.recover.deepspeed_support import reading, settings
from tests.existing.recover.test_deepspeed_scripts import plan, same

H100 = load_cluster("h100")


def test_the_trainer_s_flavour_is_recovered_from_its_arguments() -> None:
    made = plan("llama2-13b", zero_stage=3, grad_bytes=2, micro=2)
    files = render(made, "deepspeed")
    words = [
        "--deepspeed",
        "ds_config_hf.json",
        "--model_name_or_path",
        "meta-llama/Llama-2-13b-hf",
        "--per_device_train_batch_size",
        "2",
        "--gradient_accumulation_steps",
        str(made.best.configuration.num_microbatches),
        "--bf16",
        "True",
        "--model_max_length",
        str(made.best.configuration.seq_length),
    ]
    same(run(reading(files["ds_config_hf.json"], words, 16), H100, Supplied()), made)


SIMPLE = {
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": 4,
    "bf16": {"enabled": True},
    "zero_optimization": {"stage": 2},
}
SEVEN = Supplied(model=load_model("llama2-7b"), seq_length=2048)


def of(config: dict[str, Any], *words: str, gpus: int | None = 8, supplied: Supplied = SEVEN) -> Run:
    return run(reading(config, words, gpus), H100, supplied)


def refused(config: dict[str, Any], *words: str, gpus: int | None = 8, supplied: Supplied = SEVEN) -> str:
    with pytest.raises(InputError) as caught:
        of(config, *words, gpus=gpus, supplied=supplied)
    return str(caught.value)


@pytest.mark.usefixtures("warm_deepspeed")
def test_deepspeed_resolves_the_same() -> None:
    pytest.importorskip("deepspeed")
    from symconfig.verify.deepspeed import run as real

    cases = [
        {"train_batch_size": 64},
        {"train_batch_size": 64, "gradient_accumulation_steps": 2},
        {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 2},
        {"train_micro_batch_size_per_gpu": 2},
        {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 3},
        {"train_batch_size": 64, "sequence_parallel_size": 2, "train_micro_batch_size_per_gpu": 4},
        {"train_batch_size": 64, "tensor_parallel": {"autotp_size": 4}, "train_micro_batch_size_per_gpu": 4},
    ]
    jobs = [{"task": "resolve", "config": case, "world_size": 8} for case in cases]
    for config, answer in zip(cases, real(jobs, 120), strict=True):
        found, resolved = of({**config, "bf16": {"enabled": True}}).configuration, answer["resolved"]
        assert found.micro == resolved["train_micro_batch_size_per_gpu"]
        assert found.global_batch * found.tp == resolved["train_batch_size"]


def test_three_sizes_give_the_gpus() -> None:
    found = of({**SIMPLE, "train_batch_size": 128}, gpus=None)
    assert found.configuration.world_size == 16
    assert "GPUs" in {item.what for item in found.assumed}


@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"train_batch_size": 12, "train_micro_batch_size_per_gpu": 5}, "is not micro-batch 5"),
        ({"train_batch_size": 100, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 4}, "need 64"),
        ({"train_batch_size": "64"}, "is no size of a batch"),
        ({"train_batch_size": True}, "is no size of a batch"),
        ({}, "has neither train_batch_size"),
        ({"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": 3}}, "do not divide"),
        ({"train_micro_batch_size_per_gpu": 1, "sequence_parallel_size": -1}, "is no degree"),
        ({"train_micro_batch_size_per_gpu": 1, "tensor_parallel": {"autotp_size": "4"}}, "is no degree"),
    ],
)
def test_what_does_not_come_out_is_told_and_not_guessed(config: dict[str, Any], said: str) -> None:
    assert said in refused({**config, "bf16": {"enabled": True}})


def test_all_that_is_missing_is_told_at_once_with_what_to_say() -> None:
    text = refused(
        {"train_micro_batch_size_per_gpu": "auto", "zero_optimization": {"stage": 3}}, gpus=None, supplied=Supplied()
    )
    for hint in ("--model", "--seq-length", "Try: a number."):  # no program is there that reads an argument
        assert hint in text
    assert "--per_device_train_batch_size" not in text
    assert "--gpus" in refused(SIMPLE, gpus=None)


def test_what_is_wrong_in_the_json_is_told_at_its_place() -> None:
    text = refused({"bf16": {"enabled": True}, "train_batch_size": 100, "train_micro_batch_size_per_gpu": 3})
    assert "ds_config.json:5:23: train_batch_size: is not" in text


def test_an_auto_that_nobody_fills_in_is_told() -> None:
    config = {**SIMPLE, "train_micro_batch_size_per_gpu": "auto"}
    assert "only the Trainer" in refused(config, "--deepspeed_config=ds.json", "--per_device_train_batch_size=4")
    assert of(config, "--deepspeed=ds.json", "--per_device_train_batch_size=4").configuration.micro == 4


def test_an_argument_is_only_hinted_at_where_the_trainer_reads_it() -> None:
    beside = "or --per_device_train_batch_size N beside it"
    for config in ({"bf16": {"enabled": True}}, {**SIMPLE, "train_micro_batch_size_per_gpu": "auto"}):
        assert beside in refused(config, "--deepspeed=ds.json")
        assert beside not in refused(config, "--deepspeed_config=ds.json")


def test_training_in_32_bits_is_not_predicted_as_if_it_were_in_16() -> None:
    assert "32 bits" in refused({"train_micro_batch_size_per_gpu": 1})
    auto = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": "auto"}}
    assert "--bf16" in refused(auto, "--deepspeed=ds.json")
    assert of(auto, "--deepspeed=ds.json", "--bf16").configuration.precision == "bf16"
    assert "precision" in {item.what for item in of(auto).assumed}


@pytest.mark.parametrize(
    "words",
    [("--cutoff_len", "1024"), ("--max_seq_length=1024",), ("--model_max_length", "1024"), ("--block-size=1024",)],
)
def test_the_sequence_has_many_names(words: tuple[str, ...]) -> None:
    assert of(SIMPLE, *words, supplied=replace(SEVEN, seq_length=None)).configuration.seq_length == 1024


@pytest.mark.parametrize(
    ("words", "granularity"),
    [
        (("--gradient_checkpointing", "True"), "full"),
        (("--gradient_checkpointing",), "full"),
        (("--gradient_checkpointing=False",), "none"),
        (("--lr=1",), "none"),
        (("--recompute-layers=-1",), "full"),
    ],
)
def test_recompute_is_an_argument(words: tuple[str, ...], granularity: str) -> None:
    assert of(SIMPLE, *words).configuration.recompute == granularity


@pytest.mark.parametrize(
    ("given", "zoo"),
    [
        ("meta-llama/Llama-2-70b-hf", "llama2-70b"),
        ("/data/models/Llama-3.1-8B", "llama3.1-8b"),
        ("meta-llama/Llama-3.1-8B-Instruct", "llama3.1-8b"),
        ("Qwen/Qwen2.5-7B", "qwen2.5-7b"),
    ],
)
def test_a_model_goes_by_its_name(given: str, zoo: str) -> None:
    found = of(SIMPLE, "--model_name_or_path", given, supplied=Supplied(seq_length=4096)).described
    assert (found.model, found.zoo) == (load_model(zoo), zoo)
    assert bool(found.assumed) == (given != found.model.huggingface_id)


def test_a_model_that_is_not_known_is_not_guessed() -> None:
    for given in ("meta-llama/Llama-2-70b-v2", "bigscience/bloom", "Qwen/Qwen2.5-7B-1M", ""):
        assert "--model" in refused(SIMPLE, f"--model_name_or_path={given}", supplied=Supplied(seq_length=4096))


LORA = ("--lora_rank", "16", "--lora_alpha", "32", "--lora_dropout", "0.1")


@pytest.mark.parametrize(
    "words",
    [
        (*LORA, "--lora_target", "q_proj,k_proj,v_proj,o_proj"),
        (*LORA, "--finetuning_type", "lora", "--lora_target", "o_proj,q_proj,k_proj,v_proj"),
        (*LORA, "--use_lora", "True", "--lora_modules", "q_proj", "k_proj", "v_proj", "o_proj"),
    ],
)
def test_an_adapter_is_an_argument(words: tuple[str, ...]) -> None:
    found = of(SIMPLE, *words, supplied=Supplied(model=load_model("llama2-70b"), seq_length=4096)).described
    mine, theirs = found.model.adapter, load_model("llama2-70b-lora").adapter
    assert {*mine.target_modules} == {*theirs.target_modules}
    assert mine.model_copy(update={"target_modules": theirs.target_modules}) == theirs
    assert found.zoo == "llama2-70b"


def test_adapters_of_other_shapes_are_on_the_model() -> None:
    found = of(SIMPLE, "--use_lora", "--lora_target=all", "--load_in_4bit=True").described
    adapter = found.model.adapter
    assert (adapter.method, adapter.r, len(adapter.target_modules)) == ("qlora", 8, 7)
    assert found.zoo == "llama2-7b"
    assert "rank of the adapters" in {item.what for item in found.assumed}
    assert of(SIMPLE, "--use_lora=False", "--lora_r=8").described.zoo == "llama2-7b"
    assert "embed_tokens" in refused(SIMPLE, "--lora_r=8", "--lora_target=embed_tokens")


def test_every_argument_that_is_wrong_is_told_with_its_place() -> None:
    text = refused(
        {"train_batch_size": 64},
        "--bf16=maybe",
        "--cutoff_len=x",
        "--deepspeed=ds.json",
        supplied=replace(SEVEN, seq_length=None),
    )
    assert "launch.sh:2:1: --cutoff_len" in text


@pytest.mark.parametrize(
    ("section", "stage", "share", "weights"),
    [
        ({"stage": 2, "offload_optimizer": {"device": "cpu"}}, 2, 1.0, False),
        (
            {"stage": 3, "offload_optimizer": {"device": "nvme", "ratio": 0.5}, "offload_param": {"device": "cpu"}},
            3,
            0.5,
            True,
        ),
        ({"stage": 2, "offload_param": {"device": "cpu"}}, 2, 0.0, False),
        ({"stage": 0, "offload_optimizer": {"device": "cpu"}}, 0, 0.0, False),
        ({"stage": 2, "cpu_offload": True}, 2, 1.0, False),
        ({"stage": 3, "offload_optimizer": {"device": "none"}}, 3, 0.0, False),
        ({"stage": "3"}, 3, 0.0, False),
        ({}, 0, 0.0, False),
    ],
)
def test_what_zero_offloads(section: dict[str, Any], stage: int, share: float, weights: bool) -> None:
    zero = zero_of({"zero_optimization": section})
    assert (zero.stage, zero.offload) == (stage, Offload(share, weights))


def test_what_is_switched_off_costs_time() -> None:
    times = {}
    for name, zero in {
        "to all": {"stage": 2, "overlap_comm": True},
        "in silence": {"stage": 2},
        "to their owners": {"stage": 2, "overlap_comm": True, "use_multi_rank_bucket_allreduce": False},
        "to all by hand": {
            "stage": 2,
            "overlap_comm": True,
            "use_multi_rank_bucket_allreduce": False,
            "reduce_scatter": False,
        },
    }.items():
        found = of({**SIMPLE, "zero_optimization": zero}, gpus=16)
        times[name] = predict(found.described.model, H100, found.configuration).predicted.step_s
    assert times["to their owners"] < times["to all"] == times["to all by hand"] < times["in silence"]


@pytest.mark.parametrize(
    "text",
    [
        "[]",
        "3",
        "{}",
        '{"zero_optimization": true}',
        '{"zero_optimization": [1]}',
        '{"tensor_parallel": 3, "bf16": true, "data_types": 1, "optimizer": "x"}',
    ],
)
def test_a_strange_file_is_refused_in_sentences(text: str) -> None:
    with pytest.raises(InputError):
        run(reading(text, ("--deepspeed=x",), 8), H100, SEVEN)


@pytest.mark.parametrize(
    ("kind", "optim", "found", "taken"),
    [
        (None, None, "adam", False),
        ("AdamW", "adafactor", "adam", False),  # DeepSpeed's own goes first
        (None, "adamw_bnb_8bit", "adam8bit", False),
        (None, "paged_adamw_8bit", "adam8bit", False),
        (None, "adafactor", "adafactor", False),
        (None, "adamw_torch_fused", "adam", False),
        (None, "lion_8bit", "adam", True),
        ("Lamb", None, "adam", True),
        ("SGD", None, "sgd", False),
    ],
)
def test_what_steps_the_weights(kind: str | None, optim: str | None, found: str, taken: bool) -> None:
    config = {} if kind is None else {"optimizer": {"type": kind}}
    words = [] if optim is None else ["--optim", optim]
    optimizer, assumed = optimizer_of(config, Arguments(settings(words)))
    assert (optimizer.name, bool(assumed)) == (found, taken)

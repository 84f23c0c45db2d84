"""DeepSpeed's JSON, launch scripts and training scripts: golden files, arithmetic, and what is refused by name."""

from __future__ import annotations

import importlib.util
import json
import os
import tempfile
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from hypothesis import example, given, settings

import symconfig
from symconfig.descriptor.architectures.keys import SAME_NETWORK
from symconfig.descriptor.huggingface import import_config
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.descriptor.write import config_json
from symconfig.errors import InfeasibleError
from symconfig.plans.plan import Plan
from symconfig.render import deepspeed, render
from symconfig.render.deepspeed import arguments, default_model, requirements
from symconfig.resources import data_dir
from tests.render.bash import dry_run, really_run
from tests.render.test_megatron_launch import TEXT
from tests.sample_plans import sample_model, sample_plan

GOLDEN = Path(__file__).parent / "golden_deepspeed"
CASES: dict[str, dict[str, Any]] = {
    "llama2-13b.zero1": {"model": "llama2-13b", "grad_bytes": 4},
    "llama2-13b.zero3.offload": {
        "model": "llama2-13b",
        "zero_stage": 3,
        "optimizer_offload": 0.5,
        "param_offload": True,
    },
    "llama2-13b.autotp": {"model": "llama2-13b", "tp": 4, "dp": 4, "zero_stage": 2, "sequence_parallel": False},
    "llama2-13b.ulysses": {"model": "llama2-13b", "cp": 4, "dp": 4, "zero_stage": 2, "cp_comm": "a2a"},
    "llama2-13b-lora.zero2": {"model": "llama2-13b-lora", "zero_stage": 2, "optimizer_offload": 1.0},
    "qwen3-30b-a3b.autoep": {"model": "qwen3-30b-a3b", "ep": 8, "zero_stage": 2},
    "llama2-13b.fp16": {
        "model": "llama2-13b", "cluster": "v100-16gb", "precision": "fp16", "grad_bytes": 2, "zero_stage": 3,
    },
}  # fmt: skip


def _plan(**fields: Any) -> Any:
    return sample_plan(backend="deepspeed", **fields)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("file", ["ds_config.json", "ds_config_hf.json"])
def test_rendered_json_is_as_before(name: str, file: str) -> None:
    text = render(_plan(**CASES[name]), "deepspeed")[file]
    path = GOLDEN / f"{name}.{file}"
    if os.environ.get("SYMCONFIG_UPDATE_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8"), f"{path.name} changed; SYMCONFIG_UPDATE_GOLDEN=1 accepts it"


@pytest.mark.parametrize(
    ("degrees", "ranks"),
    [
        ({"dp": 16}, 16),
        ({"dp": 4, "tp": 4, "sequence_parallel": False}, 16),  # AutoTP ranks are counted as data ranks
        ({"dp": 4, "cp": 4, "cp_comm": "a2a"}, 4),  # Ulysses ranks are not
    ],
)
def test_train_batch_size_counts_ranks_as_deepspeed_does(degrees: dict[str, Any], ranks: int) -> None:
    config = deepspeed.config(_plan(zero_stage=2, micro=2, global_batch=2 * 4 * degrees["dp"], **degrees))
    assert config["gradient_accumulation_steps"] == 4
    assert config["train_batch_size"] == 2 * 4 * ranks


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"pp": 2, "dp": 8}, "pp:"),
        ({"vpp": 2}, "vpp:"),
        ({"model": "qwen3-30b-a3b", "ep": 4, "etp": 2}, "etp:"),
        ({"model": "gpt-oss-120b", "ep": 8}, "gpt_oss"),
        ({"model": "mixtral-8x7b", "tp": 2, "dp": 8, "sequence_parallel": False}, "mixtral"),
        ({"model": "qwen2.5-7b", "tp": 8, "dp": 2, "sequence_parallel": False}, "4 key-value heads do not divide"),
        ({"tp": 2, "cp": 2, "dp": 4, "cp_comm": "a2a", "sequence_parallel": False}, "do not combine"),
        ({"cp": 2, "dp": 8, "cp_comm": "p2p"}, "p2p"),
        ({"cp": 2, "dp": 8, "cp_comm": "a2a", "zero_stage": 1, "grad_bytes": 4}, "zero:"),
        ({"model": "llama2-13b-lora", "tp": 2, "dp": 8, "sequence_parallel": False}, "adapter"),
        ({"precision": "fp8"}, "fp8"),
        ({"tp": 2, "dp": 8, "sequence_parallel": True}, "sp:"),
        ({"recompute": "selective", "recompute_modules": ("core_attn",)}, "recompute:"),
        ({"activation_offload": True}, "activation_offload:"),
        ({"model": "mixtral-8x7b", "ep": 8, "dp": 16, "overlap_moe_a2a": True}, "moe_overlap:"),
        ({"param_offload": True, "zero_stage": 1}, "stage 1"),
        ({"optimizer_offload": 0.5, "zero_stage": 1}, "optimizer_offload:"),
        ({"zero_stage": 0, "grad_bytes": 4}, "without ZeRO"),
        ({"model": "deepseek-v3"}, "multi-token"),
    ],
)
def test_what_deepspeed_cannot_run_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(InfeasibleError) as caught:
        render(_plan(**{"model": "llama2-13b", **fields}), "deepspeed")
    assert named in str(caught.value)


def test_a_share_of_the_optimizer_is_a_share_of_many_tiles() -> None:
    """13.0e9 parameters over 16 ranks, a share of whose tiles goes to the host: one tile could only stay or go."""
    whole, part = (
        deepspeed.config(_plan(zero_stage=3, optimizer_offload=share))["zero_optimization"]["sub_group_size"]
        for share in (1.0, 0.5)
    )
    assert whole == 1_000_000_000
    assert 32 < 13.0e9 / 16 / part < 128


@pytest.mark.parametrize("name", zoo_models())
def test_config_json_imported_again_is_the_model(name: str) -> None:
    model = load_model(name)
    again = import_config(config_json(model), "config.json", name).model_dump(mode="json")
    other = {"source", "huggingface_id", "notes", "adapter"} | (
        {"model_type"} if model.model_type in SAME_NETWORK else set()
    )
    wanted = model.model_dump(mode="json")
    assert {key: again[key] for key in wanted.keys() - other} == {key: wanted[key] for key in wanted.keys() - other}


def test_an_adapter_starts_from_pretrained_weights_and_asks_for_peft() -> None:
    plan = _plan(model="llama2-13b-lora")
    assert default_model(plan) == "meta-llama/Llama-2-13b-hf"
    assert default_model(_plan(model="llama2-13b")) == ""
    assert any(line.startswith("peft") for line in requirements(plan))
    assert "--lora-target-modules=q_proj,v_proj" in arguments(plan)["ADAPTER_ARGS"]


def test_deepspeeds_own_program_recomputes_no_more_layers_than_it_must(tmp_path: Path) -> None:
    """Adapters of 70B on 64 GPUs left three quarters of each GPU empty while all layers ran again."""
    job = {"model": "llama2-70b-lora", "cluster": "h100", "gpus": 64, "global_batch_size": 64, "top": 1}
    some, every = (symconfig.plan(**job, pins=pins) for pins in ({"zero": "3"}, {"zero": "3", "recompute": "full"}))
    c = some.best.configuration
    assert (c.recompute_method, 0 < c.recompute_layers < 80) == ("block", True)
    assert some.best.predicted.step_s < 0.9 * every.best.predicted.step_s
    some.write(tmp_path / "out")
    assert f"--recompute-layers={c.recompute_layers}" in (tmp_path / "out" / "launch.sh").read_text()
    judged = symconfig.audit(tmp_path / "out" / "launch.sh", "h100", plan=False).judged
    assert judged.plan.best.predicted == some.best.predicted
    with pytest.raises(InfeasibleError, match="Transformers recomputes all layers or none"):
        some.write(tmp_path / "other", target="transformers")


def test_the_trainer_recomputes_each_nth_layer_in_shards_of_fsdp(tmp_path: Path) -> None:
    """All layers of 8B on 64 GPUs ran again at a third of their memory, since none left 0.3 GiB too little."""
    job = {"model": "llama3.1-8b", "cluster": "a100-80gb", "gpus": 64, "global_batch_size": 64, "seq_length": 8192}
    made = symconfig.plan(**job, backend="fsdp", top=1)
    c = made.best.configuration
    assert (c.recompute_method, c.recompute_layers) == ("block", 3)
    made.write(tmp_path / "out")
    arguments = json.loads((tmp_path / "out" / "training_args.json").read_text())
    assert arguments["activation_checkpointing_kwargs"] == {"every_n_layers": 11}
    shards = (tmp_path / "out" / "accelerate_config.yaml").read_text()
    assert "fsdp_activation_checkpointing: false" in shards
    launched = symconfig.audit(
        tmp_path / "out" / "launch.sh", "a100-80gb", plan=False, model="llama3.1-8b", seq_length=8192
    ).judged
    assert launched.plan.best.predicted.step_s == pytest.approx(made.best.predicted.step_s, rel=1e-3)
    with pytest.raises(InfeasibleError, match="all layers or none"):
        made.write(tmp_path / "other", target="llamafactory")


def _launched(model: str = "llama2-13b-lora", **fields: Any) -> Plan:
    overrides = {name: fields.pop(name) for name in ("name", "huggingface_id") if name in fields}
    return sample_plan(sample_model(model, **overrides), backend="deepspeed", **fields)


def _after_script(words: list[str]) -> list[str]:
    index = next(i for i, word in enumerate(words) if word.endswith("/train.py"))
    return words[index + 1 :]


@settings(max_examples=12, deadline=None)
@given(TEXT, TEXT, TEXT, TEXT, TEXT)
@example("$(touch PWNED)", '"; touch PWNED; echo "', "-x\n", "`touch PWNED`", "a b")
def test_hostile_strings_arrive_as_the_very_arguments(
    name: str, weights: str, save: str, data: str, tokenizer: str
) -> None:
    training = {"save": save, "load": save, "data_path": (data, save, "c"), "tokenizer_model": tokenizer}
    plan = _launched(name=name, huggingface_id=weights, training=training, zero_stage=2)
    files = render(plan, "deepspeed")
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        arrived, _ = really_run(files, folder, "--extra", save)
        expected = [
            f"--deepspeed-config={folder / 'out'}/ds_config.json",
            f"--model={weights}",
            f"--tokenizer={tokenizer}",
            f"--data={data}",
            f"--data={save}",
            "--data=c",
            f"--save={save}",
            f"--load={save}",
            *(word for words in arguments(plan).values() for word in words),
            "--extra",
            save,
        ]
        assert _after_script(arrived) == expected
        assert _after_script(dry_run(files, folder / "out", "launch.sh", "--extra", save)) == expected
        assert dry_run(files, folder / "out", "sbatch.sh", data)[-1] == data
        assert not list(folder.rglob("PWNED"))


@settings(max_examples=12, deadline=None)
@given(TEXT, TEXT)
def test_the_environment_replaces_weights_and_data(weights: str, data: str) -> None:
    files = render(_launched(training={"data_path": ("job.jsonl",)}), "deepspeed")
    with tempfile.TemporaryDirectory() as scratch:
        arrived, _ = really_run(files, Path(scratch), MODEL=weights, DATA=data)
        assert f"--model={weights}" in arrived
        assert [word for word in arrived if word.startswith("--data=")] == [f"--data={data}"]
        arrived, _ = really_run(files, Path(scratch), MODEL="", DATA="")
        assert f"--model-config={scratch}/out/model" in arrived
        assert not [word for word in arrived if word.startswith(("--data=", "--model="))]
        assert not list(Path(scratch).rglob("PWNED"))


SCRIPTS = data_dir("templates") / "deepspeed"


@pytest.fixture(scope="module")
def sequences() -> ModuleType:
    pytest.importorskip("torch")
    return _script("sequences")


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"deepspeed_{name}", SCRIPTS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_universal_checkpoint_is_loaded_until_a_later_one_is_saved(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    saving = _script("saving")
    assert saving.universal_is_latest(tmp_path)  # and DeepSpeed says that there is none
    (tmp_path / "latest_universal").write_text("step-2_universal")
    assert saving.universal_is_latest(tmp_path)
    for latest, is_latest in (("step-2", True), ("step-4", False), ("step-20", False)):
        (tmp_path / "latest").write_text(latest)
        assert saving.universal_is_latest(tmp_path) is is_latest


def _file(folder: Path, *documents: dict[str, Any]) -> str:
    path = folder / "data.jsonl"
    lines = [json.dumps(document, ensure_ascii=False) + "\n" for document in documents]
    path.write_text("".join(lines), encoding="utf-8")
    return str(path)


def test_documents_follow_each_other_and_labels_are_the_next_token(sequences: ModuleType, tmp_path: Path) -> None:
    path = _file(tmp_path, {"input_ids": [1, 2, 3]}, {"input_ids": [4, 5, 6, 7]}, {"input_ids": [8, 9]})
    ids, labels = sequences.Sequences(4, 0, 10, [path]).batch(0, 2)
    assert ids.tolist() == [[1, 2, 3, 4], [5, 6, 7, 8]]
    # no document predicts the first token of the next one
    assert labels.tolist() == [[2, 3, -100, 5], [6, 7, -100, 9]]


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ({"foo": "x"}, "needs one of text, or messages, or prompt with response, or input_ids"),
        ({"prompt": "x"}, "needs one of text"),
        ([1, 2], "needs one of text"),
        ({"input_ids": ["a"]}, "must be lists of whole numbers"),
        ({"input_ids": [1, 2], "labels": [1]}, "2 input_ids have 1 labels"),
        ({"input_ids": [3, 100]}, "tokens 3 to 100 are not within the model's vocabulary of 100"),
    ],
)
def test_a_document_that_cannot_be_trained_on_is_named(
    document: Any, said: str, sequences: ModuleType, tmp_path: Path
) -> None:
    with pytest.raises(SystemExit, match=f"data.jsonl:2: ValueError: .*{said}"):
        sequences.read([_file(tmp_path, {"input_ids": [1, 2]}, document)], 2, None, False, 100)


def test_every_rank_and_every_restart_sees_the_same_numbers(sequences: ModuleType, tmp_path: Path) -> None:
    path = _file(tmp_path, *({"input_ids": [i, i + 1, i + 2, i + 3]} for i in range(0, 80, 4)))
    first, second = (sequences.Sequences(8, 3, 100, [path]) for _ in range(2))
    count = len(first.rows)
    assert [first.row(i) for i in range(3 * count)] == [second.row(i) for i in range(3 * count)]
    epochs = [sorted(first.row(i)[0] for i in range(e * count, (e + 1) * count)) for e in range(3)]
    assert epochs[0] == epochs[1] == epochs[2]  # each epoch is the same sequences …
    assert [first.row(i) for i in range(count, 2 * count)] != first.rows  # … in another order
    drawn = sequences.Sequences(8, 3, 100, [])
    assert drawn.row(5) == drawn.row(5) != drawn.row(6)

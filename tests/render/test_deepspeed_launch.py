"""DeepSpeed's launch.sh and sbatch.sh are run, with strings that would like to be commands."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings

from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.deepspeed import arguments
from tests.render.bash import dry_run, really_run
from tests.render.test_megatron_launch import TEXT
from tests.sample_plans import sample_model, sample_plan


def _plan(model: str = "llama2-13b-lora", **fields: Any) -> Plan:
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
    plan = _plan(name=name, huggingface_id=weights, training=training, zero_stage=2)
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
    files = render(_plan(training={"data_path": ("job.jsonl",)}), "deepspeed")
    with tempfile.TemporaryDirectory() as scratch:
        arrived, _ = really_run(files, Path(scratch), MODEL=weights, DATA=data)
        assert f"--model={weights}" in arrived
        assert [word for word in arrived if word.startswith("--data=")] == [f"--data={data}"]
        arrived, _ = really_run(files, Path(scratch), MODEL="", DATA="")
        assert f"--model-config={scratch}/out/model" in arrived
        assert not [word for word in arrived if word.startswith(("--data=", "--model="))]
        assert not list(Path(scratch).rglob("PWNED"))

"""What a request may make the server read: files of the package, and nothing else, whatever its fields name."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from symconfig.api import existing, planning
from symconfig.descriptor.job import Job
from symconfig.errors import InputError
from symconfig.resources import PACKAGE, data_dir
from symconfig.serve.work import answer

JOB: dict[str, Any] = {"model": "llama2-7b", "cluster": "h100", "gpus": 8, "global_batch_size": 64}
TARGETS = ("/etc/passwd", "../x.yaml", "/proc/self/environ", "org/private")
_OURS = tuple(map(str, (PACKAGE, data_dir("model_zoo"), data_dir("templates"), sys.prefix, sys.base_prefix)))


class Touched:
    """The files that were opened or looked at while `names` was a list."""

    names: list[str] | None = None


def _opened(event: str, arguments: tuple[Any, ...]) -> None:
    if Touched.names is not None and event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], str):
        Touched.names.append(f"open {arguments[0]}")


sys.addaudithook(_opened)


@pytest.fixture
def touched(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    real = os.stat

    def looked(path: Any, *args: Any, **kwargs: Any) -> os.stat_result:
        if Touched.names is not None and isinstance(path, str | Path):
            Touched.names.append(str(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "stat", looked)
    Touched.names = found = []
    yield found
    Touched.names = None


def _asked(kind: str, data: Mapping[str, Any]) -> str:
    return json.dumps(answer(kind, data, lambda words, share: None))


def _foreign(touched: list[str]) -> list[str]:
    """Return the files of others that were touched."""
    return [name for name in touched if any(target.strip("./") in name for target in (*TARGETS, "secret"))]


def _texts(schema: Mapping[str, Any], defs: Mapping[str, Any], path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the path of every field that may be a text, `*` for an item of a list or a mapping."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        yield from _texts(defs[name], defs, path)
    for part in ("anyOf", "oneOf", "allOf"):
        for one in schema.get(part, ()):
            yield from _texts(one, defs, path)
    if schema.get("type") == "string" or "enum" in schema or "const" in schema:
        yield path
    for name, field in schema.get("properties", {}).items():
        yield from _texts(field, defs, (*path, name))
    for inner in (schema.get("items"), schema.get("additionalProperties"), *schema.get("prefixItems", ())):
        if isinstance(inner, Mapping):
            yield from _texts(inner, defs, (*path, "*"))


SCHEMA = Job.model_json_schema()
FIELDS = sorted(set(_texts(SCHEMA, SCHEMA["$defs"])))


def _with(path: tuple[str, ...], value: str, base: Mapping[str, Any]) -> dict[str, Any]:
    name, *rest = path
    if not rest:
        return {**base, name: value}
    if rest == ["*"]:
        return {**base, name: {"tp": value} if name == "pins" else [value]}
    inner = base.get(name)
    return {**base, name: _with(tuple(rest), value, inner if isinstance(inner, Mapping) else {})}


LENGTHS = {"mean": 200, "max": 512}
RL_JOB: dict[str, Any] = {
    "model": "llama2-7b", "cluster": "h100", "gpus": 8, "task": "rl",
    "rl": {
        "algorithm": "ppo", "prompts": 64, "samples": 8, "prompt_length": LENGTHS, "response_length": LENGTHS,
        "critic": "llama2-7b", "reward_model": {"model": "llama2-7b"},
    },
}  # fmt: skip


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stop where all files are read and the search begins."""

    def stopped(*args: object, **kwargs: object) -> None:
        raise InputError("all is read")

    monkeypatch.setattr(planning, "best_plan", stopped)
    monkeypatch.setattr(existing, "audit", partial(existing.audit, plan=False))


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("path", FIELDS, ids=".".join)
def test_no_field_of_a_job_makes_the_server_read_a_file(path: tuple[str, ...], touched: list[str]) -> None:
    base = RL_JOB if path[0] == "rl" else JOB
    assert json.loads(_asked("plan", base))["problems"] == ["all is read."]
    said = {target: _asked("plan", _with(path, target, base)) for target in TARGETS}
    assert _foreign(touched) == []
    assert "root:" not in "".join(said.values())


@pytest.mark.parametrize(
    "cluster",
    [
        "h100 with kernels=SECRET", "h100 with base=SECRET", "h100@SECRET", "SECRET*8 + h100*8",
        "h100 with levels=SECRET",
    ],
)  # fmt: skip
def test_no_part_of_a_cluster_s_name_is_read_as_a_file(cluster: str, touched: list[str], tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("schema: symconfig.kernels/1\npassword: hunter2\n")
    touched.clear()
    said = _asked("plan", {**JOB, "cluster": cluster.replace("SECRET", str(secret))})
    assert json.loads(said)["exit_code"] == 2
    assert "hunter2" not in said
    assert "password" not in said
    assert _foreign(touched) == []


SCRIPT = """#!/bin/bash
{line}
torchrun --nproc_per_node 8 pretrain_gpt.py --tensor-model-parallel-size 2 --num-layers 32 --hidden-size 4096 \\
  --num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 1 \\
  --global-batch-size 64 --bf16 --lr 1e-4 --train-iters 10 --vocab-size 32000 --mock-data {words}
"""
LINES = (
    'source "{secret}"', '. {secret}', 'X=$(cat {secret})', 'mapfile -t X < {secret}', 'read X < {secret}',
    'while read -r X; do echo $X; done < {secret}', 'for f in {folder}/*; do X=$f; done', 'X=$(<{secret})',
    '[ -f {secret} ] && TP=4', 'if [[ -e {secret} ]]; then TP=4; fi', 'cd {folder}', 'source <(cat {secret})',
    'eval "$(cat {secret})"', 'export BASH_ENV={secret}', 'hostfile={secret}',
)  # fmt: skip
WORDS = (
    "--yaml-cfg {secret}", "--hostfile {secret}", "--tokenizer-model {secret}", "--load {folder}", "@{secret}",
    "--deepspeed_config {secret}", "--data-path {secret}",
)  # fmt: skip
PROGRAMS = (
    "deepspeed --hostfile {secret} train.py --deepspeed {secret} --model_name_or_path {folder}",
    "accelerate launch --config_file {secret} train.py --model_name_or_path {folder}",
    "llamafactory-cli train {secret}", "swift sft --config {secret} --model {folder}",
    "python3 -m verl.trainer.main_ppo --config-path {folder} --config-name x",
    "trl sft --config {secret}", "torchrun --nproc_per_node 8 {folder}/train.py --config {secret}",
    "bash {secret}", "python train.py --model {folder} --fsdp_config {secret}",
)  # fmt: skip


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize(
    "script",
    [
        *(SCRIPT.replace("{line}", line).replace("{words}", "") for line in LINES),
        *(SCRIPT.replace("{line}", "").replace("{words}", words) for words in WORDS),
        *(f"#!/bin/bash\n{program}\n" for program in PROGRAMS),
    ],
    ids=[*LINES, *WORDS, *PROGRAMS],
)
def test_no_script_makes_the_server_read_a_file_or_tell_whether_it_is_there(script: str, touched: list[str]) -> None:
    top = Path(tempfile.mkdtemp())  # a short name, which no message cuts
    folder = top / "private"
    folder.mkdir()
    names = ("x.yaml", "config.json", "train.py", "x.sh")
    for name in names:
        (folder / name).write_text('{"password": "hunter2", "model_type": "llama"}\n')
    touched.clear()
    said = []
    for where in (folder, top / "nowhere"):
        text = script.replace("{secret}", str(where / "x.yaml")).replace("{folder}", str(where))
        answered = _asked("audit", {"script": text, "cluster": "h100"})
        assert "hunter2" not in answered
        assert "symconfig-" not in answered
        said.append(answered.replace(str(where), "WHERE"))
    differing = [pair for pair in zip(*(one.split('", "') for one in said), strict=False) if pair[0] != pair[1]]
    assert differing[:3] == []
    assert [event for event in touched if event.startswith(f"open {folder}")] == []
    shutil.rmtree(top)

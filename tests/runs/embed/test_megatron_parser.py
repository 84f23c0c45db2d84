"""Every way in which a script can hand a plan to Megatron-LM, through Megatron's own parser: all give the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from symconfig.frameworks.megatron import environment, flags
from symconfig.plans.plan import Plan
from symconfig.verify.megatron_session import CAPABILITY
from symconfig.verify.megatron_source import MegatronSource
from tests.sample_plans import sample_plan
from tests.verify.megatron_support import source

WORKER = Path(__file__).with_name("megatron_worker.py")
WAYS = ("argv", "extra_args_provider")
PLANS = {"dense": ("llama3.1-70b", "a100-80gb"), "experts": ("mixtral-8x7b", "h100")}


@dataclass(frozen=True, slots=True)
class Asked:
    """One plan in one way, with words of the script's own command line."""

    plan: str
    way: str
    words: tuple[str, ...] = ()


CASES = tuple(Asked(plan, way) for plan in PLANS for way in WAYS) + tuple(
    Asked("dense", way, ("--micro-batch-size", "2", "--lr", "0.5")) for way in WAYS
)


def version(real: MegatronSource) -> str:
    return flags.resolve("core_v{}.{}".format(*real.release))


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> dict[Asked, dict[str, Any]]:
    """What Megatron resolved of every case."""
    real = source()
    plans = {name: sample_plan(*of, version=version(real)) for name, of in PLANS.items()}
    folder = tmp_path_factory.mktemp("plans")
    for name, plan in plans.items():
        (folder / name).write_text(plan.to_json(), encoding="utf-8")
    jobs = [
        {
            **_machine(plans[case.plan]),
            "id": str(place),
            "plan": str(folder / case.plan),
            "way": case.way,
            "words": case.words,
        }
        for place, case in enumerate(CASES)
    ]
    repository = Path(__file__).parents[3]
    ended = subprocess.run(
        [sys.executable, "-E", "-P", WORKER, real.root, repository],
        input=json.dumps(jobs),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    answers = [json.loads(line) for line in ended.stdout.splitlines()]
    assert not [answer for answer in answers if "args" not in answer]
    return {case: answer["args"] for case, answer in zip(CASES, answers, strict=True)}


def _machine(plan: Plan) -> dict[str, Any]:
    gpu = plan.cluster.gpu
    return {
        "world_size": plan.best.configuration.world_size,
        "capability": CAPABILITY[gpu.architecture],
        "memory_bytes": int(gpu.memory_bytes.value),
        "compute_units": gpu.compute_units,
        "env": {item.name: item.value for item in environment.variables(plan, plan.best.target.version)},
    }


@pytest.mark.parametrize("way", WAYS[1:])
@pytest.mark.parametrize("plan", PLANS)
def test_every_way_gives_what_the_command_line_gives(taken: dict[Asked, dict[str, Any]], plan: str, way: str) -> None:
    own = {"of_my_own": "kept"} if way == "extra_args_provider" else {}
    assert taken[Asked(plan, way)] == {**taken[Asked(plan, "argv")], **own}


@pytest.mark.parametrize("way", WAYS)
def test_the_scripts_own_words_win(taken: dict[Asked, dict[str, Any]], way: str) -> None:
    case = Asked("dense", way, ("--micro-batch-size", "2", "--lr", "0.5"))
    assert (taken[case]["micro_batch_size"], taken[case]["lr"]) == (2, 0.5)
    assert taken[case]["tensor_model_parallel_size"] == 8


@pytest.mark.parametrize("plan", PLANS)
def test_the_degrees_arrive(taken: dict[Asked, dict[str, Any]], plan: str) -> None:
    best = sample_plan(*PLANS[plan]).best
    for way in WAYS:
        args = taken[Asked(plan, way)]
        assert args["tensor_model_parallel_size"] == best.configuration.tp
        assert args["transformer_pipeline_model_parallel_size"] == best.configuration.pp
        assert args["data_parallel_size"] == best.configuration.dp
        assert args["global_batch_size"] == best.configuration.global_batch
        assert args["sequence_parallel"] is True

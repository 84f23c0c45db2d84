"""YAML of the functional tests with a plan's values in it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from symconfig.existing.adapt.files import adapted
from symconfig.existing.adapt.outcome import Adapted
from symconfig.existing.launch.read import read
from symconfig.existing.recover.namespace import Namespace
from symconfig.frameworks.megatron import flags
from symconfig.plans.plan import Plan, Recompute
from symconfig.render import megatron
from tests.sample_plans import sample_plan

FULL = Recompute("full", method="uniform", num_layers=1)


def plan(**fields: Any) -> Plan:
    return sample_plan("llama2-13b", **{"tp": 4, "pp": 2, "dp": 2, "global_batch": 32, **fields})


def model_args(mine: Plan) -> str:
    lines = []
    for group in megatron.groups(mine):
        for name, *values in group.options:
            said = "true" if not values else values[0] if len(values) == 1 else f"[{', '.join(values)}]"
            lines.append(f"  {name}: {said}\n")
    head = "ENV_VARS:\n  CUDA_DEVICE_MAX_CONNECTIONS: 1  # see arguments.py\nMODEL_ARGS:\n"
    return f"{head}{''.join(lines)}TEST_TYPE: regular\n"


def adapt(folder: Path, content: str, goal: Plan) -> Adapted:
    path = folder / "config.yaml"
    path.write_bytes(content.encode())
    return adapted(str(path), goal, {})


def lines(outcome: Adapted) -> list[str]:
    return [line for line in outcome.diff.splitlines() if re.match(r"[-+](?![-+]{2} )", line)]


def test_a_file_that_says_the_plan_already_is_left_as_it_is(tmp_path: Path) -> None:
    mine = plan()
    outcome = adapt(tmp_path, model_args(mine), mine)
    assert (outcome.files, outcome.unplaced) == ({}, ())


def test_keys_change_come_and_go(tmp_path: Path) -> None:
    outcome = adapt(
        tmp_path, model_args(plan()), plan(tp=2, dp=4, zero_stage=0, recompute=FULL, overlap_param_gather=False)
    )
    assert not outcome.unplaced
    assert lines(outcome) == [
        "-  --tensor-model-parallel-size: 4",
        "+  --tensor-model-parallel-size: 2",
        "-  --use-distributed-optimizer: true",
        "-  --overlap-param-gather: true",
        "+  --recompute-granularity: full",
        "+  --recompute-method: uniform",
        "+  --recompute-num-layers: 1",
    ]


def test_what_is_written_is_read_as_the_plan(tmp_path: Path) -> None:
    goal = plan(tp=2, pp=4, vpp=5, micro=2, recompute=Recompute("selective", ("core_attn", "mlp")))
    outcome = adapt(tmp_path, model_args(plan(pp=4, vpp=2)), goal)
    assert not outcome.unplaced
    (tmp_path / "config.yaml").write_bytes(outcome.files[outcome.reading.file])
    table = flags.flags(megatron.version(goal))
    names = Namespace(read(outcome.reading.file).settings, table)
    assert [
        names[dest]
        for dest in (
            "tensor_model_parallel_size",
            "pipeline_model_parallel_size",
            "micro_batch_size",
            "num_virtual_stages_per_pipeline_rank",
        )
    ] == [2, 4, 2, 5]
    assert set(names["recompute_modules"] or ()) == {"core_attn", "mlp"}  # type: ignore[arg-type]

"""Nodes and processes of launchers and schedulers: the numbers that hang together change together."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig.existing.adapt.files import adapted
from symconfig.render import render
from tests.existing.adapt.scripts import head, options, written
from tests.existing.adapt.test_hard_scripts import MINE, adapt, new, plan

GOAL = plan(dp=8)  # 64 GPUs; 16 before
ARGS = " ".join(options(MINE))


@pytest.mark.parametrize(
    ("before", "start", "changed"),
    [
        ("", "srun --nodes=2 --ntasks-per-node=1 torchrun --nnodes=2 --nproc_per_node=8", {"nodes=2": "nodes=8"}),
        (
            "",
            "srun -N 2 -n 2 torchrun --nnodes 2 --nproc_per_node 8",
            {"-N 2": "-N 8", "-n 2": "-n 8", "nnodes 2": "nnodes 8"},
        ),
        (
            "",
            'srun -N2 --ntasks=2 bash -c "torchrun --nnodes=2 --nproc_per_node=8',
            {"-N2": "-N8", "ntasks=2": "ntasks=8", "nnodes=2": "nnodes=8"},
        ),
        (
            "#SBATCH --nodes=2\nNNODES=$SLURM_NNODES\n",
            "srun torchrun --nnodes $NNODES --nproc_per_node 8",
            {"nodes=2": "nodes=8"},
        ),
        (
            "#SBATCH --nodes=2\n#SBATCH --gres=gpu:h100:8\n#SBATCH --ntasks-per-node=1\nN=2\n",
            "srun --nodes=$N torchrun --nnodes=$N --nproc_per_node=8",
            {"nodes=2": "nodes=8", "N=2": "N=8"},
        ),
        ("#SBATCH --nodes=2\n#SBATCH --ntasks-per-node=8\n", "srun python", {"nodes=2": "nodes=8"}),
        (
            "NODES=2\nhead -n $NODES hosts\n",
            "srun --nodes=$NODES torchrun --nnodes=$NODES --nproc_per_node=8",
            {"NODES=2": "NODES=8"},
        ),
        ("", "mpirun -np 16 -npernode 8 python", {"-np 16": "-np 64"}),
    ],
)
def test_every_number_of_the_launchers_is_the_plans(
    tmp_path: Path, before: str, start: str, changed: dict[str, str]
) -> None:
    close = '"' * (start.count('"') % 2)
    source = f"#!/bin/bash\n{before}{head(MINE)[12:]}{start} pretrain_gpt.py {ARGS}{close}\n"
    outcome = adapt(tmp_path, source, GOAL)
    assert not outcome.unplaced
    for was, now in changed.items():
        source = source.replace(was, now)
    assert new(outcome) == source


def test_a_number_that_another_option_has_too_is_left_to_a_person(tmp_path: Path) -> None:
    source = (
        f"#!/bin/bash\n{head(MINE)[12:]}N=2\nsrun torchrun --nnodes $N --nproc_per_node 8 pretrain_gpt.py {ARGS} "
        "--log-interval $N\n"
    )
    outcome = adapt(tmp_path, source, GOAL)
    assert not outcome.files
    assert [item.option for item in outcome.unplaced] == ["--nnodes", "the number of GPUs"]


def test_our_own_check_of_the_number_of_gpus_moves_with_it(tmp_path: Path) -> None:
    outcome = adapted(written(tmp_path, render(MINE, "megatron")["launch.sh"]), GOAL, {})
    assert "NNODES * GPUS_PER_NODE != 64" in new(outcome)
    assert not outcome.unplaced


@pytest.mark.parametrize(
    "start", ["env {} torchrun --nnodes 2 --nproc_per_node 8", "mpirun -np 16 -npernode 8 -x {} python"]
)
def test_variables_before_the_program_are_changed_there(tmp_path: Path, start: str) -> None:
    source = f"#!/bin/bash\n{start.format('CUDA_DEVICE_MAX_CONNECTIONS=4')} pretrain_gpt.py {ARGS}\n"
    assert new(adapt(tmp_path, source, MINE)) == source.replace("CONNECTIONS=4", "CONNECTIONS=1")

"""The GPUs that launchers and schedulers are told."""

from __future__ import annotations

import pytest

from symconfig.existing.launch.bash.read import read_bash
from symconfig.existing.launch.text import Text


@pytest.mark.parametrize(
    ("script", "nodes", "per_node", "gpus"),
    [
        ("torchrun --nproc_per_node 8 t.py --x 1", 1, 8, 8),
        ("torchrun --nproc-per-node=8 --nnodes=2:2 t.py --x 1", 2, 8, 16),
        ("torchrun --nproc_per_node 8 --nnodes 1:4 t.py --x 1", None, 8, None),
        ("torchrun --nproc_per_node 8 --nnodes $NNODES t.py --x 1", None, 8, None),
        ("torchrun --nproc_per_node gpu t.py --x 1", 1, None, None),
        ("python -m torch.distributed.launch --nproc_per_node 4 t.py --x 1", 1, 4, 4),
        ("deepspeed --num_nodes 2 --num_gpus 4 t.py --x 1", 2, 4, 8),
        ("accelerate launch --num_processes 16 --num_machines 2 t.py --x 1", 2, 8, 16),
        ("mpirun -np 32 -npernode 8 python t.py --x 1", 4, 8, 32),
        ("srun -N 4 --ntasks-per-node=8 python t.py --x 1", 4, 8, 32),
        ("srun -N4 --gpus-per-node h100:8 python t.py --x 1", 4, 8, 32),
        ("#SBATCH --nodes=4\n#SBATCH --gres=gpu:8\nsrun python t.py --x 1", 4, 8, 32),
        (
            "#SBATCH -N 4 --ntasks-per-node 1\nsrun torchrun --nnodes $SLURM_NNODES --nproc_per_node 8 t.py --x 1",
            4,
            8,
            32,
        ),
        (
            "#SBATCH --nodes=4\nsrun bash -c 'torchrun --nnodes ${SLURM_NNODES:-1} --nproc_per_node 8 t.py --x 1'",
            4,
            8,
            32,
        ),
        ("msrun --worker_num 16 --local_worker_num 8 t.py --x 1", 2, 8, 16),
        ("deepspeed --include localhost:0,1,2,3 t.py --x 1", 1, 4, 4),
        ("deepspeed --include=worker-0:0,1@worker-1:2,3 t.py --x 1", 2, 2, 4),
        ("deepspeed -i worker-0:0,1@worker-1:2 t.py --x 1", None, None, 3),
        ("deepspeed --include worker-0@worker-1:0,2 t.py --x 1", 2, None, None),
        ("deepspeed --include worker-$RANK:0,2 t.py --x 1", None, None, None),
        ("deepspeed --exclude localhost:0 t.py --x 1", None, None, None),
        ("python t.py --x 1", None, None, None),
        ("CUDA_VISIBLE_DEVICES=0,2,5 deepspeed t.py --x 1", 1, 3, 3),
        ("CUDA_VISIBLE_DEVICES=0,2,5 deepspeed --num_gpus 2 t.py --x 1", 1, 2, 2),
        ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_machines 2 t.py --x 1", 2, 2, 4),
        ("CUDA_VISIBLE_DEVICES=-1 deepspeed t.py --x 1", 1, None, None),
        ("CUDA_VISIBLE_DEVICES=0,1 torchrun t.py --x 1", 1, None, None),
    ],
)
def test_numbers_of_gpus(script: str, nodes: int | None, per_node: int | None, gpus: int | None) -> None:
    world = read_bash(Text("run.sh", script.encode())).reading.world
    assert (world.nodes, world.gpus_per_node, world.gpus) == (nodes, per_node, gpus)


def test_a_number_from_a_comment_for_the_scheduler_is_placed_there() -> None:
    text = Text("run.sh", b"#SBATCH --nodes=4\ntorchrun --nnodes $SLURM_NNODES --nproc_per_node 8 t.py --x 1\n")
    words = read_bash(text).reading.world.words
    assert [text.at(word.pieces[0].place) for word in words if word.pieces[0].place] == ["4", "8"]
    assert words[0].pieces[0].variables == ("SLURM_NNODES",)

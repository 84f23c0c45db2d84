"""Target nemo-rl: the YAML of NeMo-RL's run_grpo.py with Megatron-Core and vLLM on the same GPUs, and train.sh.

Names are those of NeMo-RL 0.7.0 (`nemo_rl/algorithms/grpo.py`, MasterConfig; `models/policy/__init__.py`). What the
file does not say is that of `examples/configs/grpo_math_1B.yaml`, which it inherits. Weights and optimizer states leave
the GPU while the engine is awake, and the reference's weights come into the actor's place, always.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

from symconfig.errors import Problem
from symconfig.format import nested
from symconfig.formats import nemo_rl as formats
from symconfig.formats.keys import write
from symconfig.plans.plan import Plan
from symconfig.render import learning, shared
from symconfig.render.learning import Learns, Rewarding
from symconfig.render.shared import STEPS_COUNTING, nodes, training_problem
from symconfig.render.target import Saving, Target, ignored

LEARNS = Learns(
    algorithms=formats.ALGORITHMS,
    engines=("vllm",),
    away=((learning.WEIGHTS, learning.STATES),),
    epochs=False,
    reference="swapped",
    rewards={"apart": Rewarding(by="shards")},  # environments/reward_model_environment.py, once all is generated
    sleep_levels=(1,),
    ranks_of_data=("vllm",),
    reads_apart=True,
)
# Those of which the Megatron-Bridge beside it makes a model (src/megatron/bridge/models, register_bridge, July 2026).
MODEL_TYPES = (
    "deepseek_v3", "gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "kimi_k2", "llama", "minimax_m2",
    "mistral", "nemotron_h", "qwen2", "qwen3", "qwen3_5_text", "qwen3_moe", "qwen3_next",
)  # fmt: skip


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables for Megatron workers: release, sections, notes, reward model; data_path: the
    job's first data set or ""; added: as `_reward_gpus`; no arrays or environment. Raises as `load_model` for the
    reward.
    """
    return {
        "framework": f"NeMo-RL {formats.NEMO.release}",
        "release": formats.NEMO.release,
        "sections": sections(plan),
        "arrays": {},
        "variables": (),
        "notes": tuple(shared.step_notes(plan)),
        "data_path": plan.training.data_path[0] if plan.training.data_path else "",
        "reward_model": learning.reward_model(plan),
        "added": _reward_gpus(plan),
    }


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what NeMo-RL's Megatron workers do not support: an entropy loss, several data sets, checkpoints of other
    runs to resume from, model types, other optimizers than Adam, and what `of_stages` refuses.
    """
    if learning.section(plan).entropy:
        yield Problem("NeMo-RL's loss has no entropy", field="rl.entropy", got="true", need="false")
    if len(plan.training.data_path) > 1:
        yield training_problem(plan, "data_path", "NeMo-RL's file is for one data set")
    yield from learning.of_checkpoints(plan, "NeMo-RL goes on from its own checkpoints")
    yield from learning.of_types(plan, "NeMo-RL", MODEL_TYPES)
    yield from learning.of_adam(plan, "NeMo-RL")
    yield from learning.of_stages(plan, "NeMo-RL")


def sections(plan: Plan) -> dict[str, Any]:
    """Return the YAML's data as nested dicts. Tokens per micro-batch are rounded up to a multiple of (tp with sequence
    parallelism) x (2 cp if cp > 1). The reward model's GPUs are added to the cluster's.
    """
    run, training, where = learning.run_of(plan), plan.training, nodes(plan)
    c, (count, gpus) = plan.best.configuration, _reward_gpus(plan)
    # Megatron-Core splits each packed sequence over tp and both halves of cp (models/megatron/data.py).
    multiple = run.multiple = (c.tp if c.sequence_parallel else 1) * (2 * c.cp if c.cp > 1 else 1)
    room = c.micro * c.seq_length
    read = room if run.step is None else run.step.read_per_gpu * c.cp
    run.actor.room, run.rollout.room = (-(-each // multiple) * multiple for each in (room, read))
    run.actor.model = training.hf_weights or plan.model.huggingface_id or plan.model.name
    run.rewards.model = learning.reward_model(plan) or None
    run.data_path = training.data_path[0] if training.data_path else None
    run.world = SimpleNamespace(gpus=where.gpus + gpus, nodes=where.count + count)
    rewards = formats.REWARDS if run.rl.reward_model is not None else {}
    return nested(write({**formats.STEP, **rewards, **formats.RUN}, run))


def _reward_gpus(plan: Plan) -> tuple[int, int]:
    """Return what the reward model's own GPUs add to NeMo-RL's cluster: (nodes, 0), or (0, GPUs of the node) if one
    node holds them and the trained model; (0, 0) without such GPUs.
    """
    count, gpus = learning.reward_nodes(plan)
    together = plan.best.configuration.world_size + count * gpus <= plan.cluster.gpus_per_node
    return (0, gpus) if together else (count, 0)


TARGETS = (
    Target(
        name=formats.NEMO.name,
        does="NeMo-RL's YAML for GRPO with Megatron-Core and vLLM on the same GPUs, and train.sh",
        variables=variables,
        problems=_problems,
        assumes={"backend": "megatron"},
        learns=LEARNS,
        counts=STEPS_COUNTING,
        saving=Saving(
            "checkpointing.enabled", "bash train.sh checkpointing.enabled=true checkpointing.checkpoint_dir=DIR"
        ),
        ignored_fields=ignored(
            "NeMo-RL",
            split="NeMo-RL takes a data set for training and another for validation",
            eval_iters="NeMo-RL validates on samples that grpo.max_val_samples counts",
            distributed_timeout_minutes="NeMo-RL waits as long as PyTorch",
            log_interval="NeMo-RL logs every step",
        ),
    ),
)

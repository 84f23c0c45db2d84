"""Target nemo-rl-dtensor: the YAML of NeMo-RL's run_grpo.py with workers of PyTorch's FSDP 2, and train.sh.

Names are those of the target nemo-rl. NeMo-RL loads the model in fp32, gathers it in 16 bits and reduces gradients in
fp32 (`nemo_rl/models/automodel/setup.py`); packed sequences run flash attention of Transformers' modules.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from symconfig.errors import Problem
from symconfig.frameworks.fsdp.backend import TORCH_RELEASE
from symconfig.plans.plan import Plan
from symconfig.render import learning, nemo_rl
from symconfig.render.nemo_rl import Section
from symconfig.render.refused import refused

NAME = "nemo-rl-dtensor"
DOES = "NeMo-RL's YAML for GRPO with FSDP workers and vLLM on the same GPUs, and train.sh"
ASSUMES = {"backend": "fsdp"}
COUNTS, SAVING, UNSAID, LEARNS = nemo_rl.COUNTS, nemo_rl.SAVING, nemo_rl.UNSAID, nemo_rl.LEARNS
_SCHEDULERS = "torch.optim.lr_scheduler"
_STYLES = ("constant", "cosine")


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what NeMo-RL cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return nemo_rl.shown(plan, dtensor(plan))


def _problems(plan: Plan) -> Iterator[Problem]:
    p, training = plan.best.parallel, plan.training
    yield from (each.problem() for each in refused(plan, "fsdp", TORCH_RELEASE))
    yield from nemo_rl.problems(plan)
    yield from learning.of_fsdp(plan, "NeMo-RL")
    if p.cp > 1:
        what = "NeMo-RL's FSDP workers split no packed sequence"
        yield Problem(what, field="cp", got=str(p.cp), pins=("cp=1",))
    if training.lr_decay_style not in _STYLES:
        what, need = "NeMo-RL is told one of these alone", " or ".join(_STYLES)
        yield Problem(what, field="training.lr_decay_style", got=training.lr_decay_style, need=need)


def dtensor(plan: Plan) -> Section:
    """Return what FSDP's workers are told of the policy."""
    training, instances = plan.training, plan.best.options.instances
    return {
        "megatron_cfg": {"enabled": False},
        "dtensor_cfg": {
            "enabled": True,
            "_v2": True,
            "tensor_parallel_size": 1,
            "context_parallel_size": 1,
            **({"dp_replicate_size": instances} if instances > 1 else {}),
            "sequence_parallel": False,
            "cpu_offload": plan.best.options.param_offload,
            "activation_checkpointing": plan.best.options.recompute.granularity == "full",
        },
        "optimizer": {
            "name": "torch.optim.AdamW",
            "kwargs": {
                "lr": training.lr,
                "weight_decay": training.weight_decay,
                "betas": [training.adam_beta1, training.adam_beta2],
                "eps": training.adam_eps,
            },
        },
        "scheduler": list(_schedule(plan)),
    }


def _schedule(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield the learning rate's schedule, which counts steps: a warm-up from almost nothing, and what follows."""
    training = plan.training
    warm, last = training.lr_warmup_iters, training.lr_decay_iters or training.train_iters
    if warm:
        ramp = {"start_factor": 1e-3, "end_factor": 1.0, "total_iters": warm}
        yield {"name": f"{_SCHEDULERS}.LinearLR", "kwargs": ramp}
    if training.lr_decay_style == "cosine" and training.min_lr != training.lr:
        falls = {"T_max": max(1, last - warm), "eta_min": training.min_lr}
        yield {"name": f"{_SCHEDULERS}.CosineAnnealingLR", "kwargs": falls}
    else:
        yield {"name": f"{_SCHEDULERS}.ConstantLR", "kwargs": {"factor": 1.0, "total_iters": last}}
    yield {"milestones": [warm] if warm else []}

"""Target slime: the arguments of its train.py, Megatron-LM's own among them, in the arrays of its scripts.

Names and defaults are those of slime 0.3.1, slime/utils/arguments.py. It trains with packed sequences of any length
(`variable_seq_lengths`) and always with the distributed optimizer; what the job does not say of the algorithm is left
as slime has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace

from symconfig.descriptor.architectures.keys import words as words_of
from symconfig.errors import Problem
from symconfig.formats import slime as formats
from symconfig.formats.keys import Keys, write
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.render import learning, megatron, shared
from symconfig.render.learning import Learns, Rewarding
from symconfig.render.shared import STEPS_COUNTING
from symconfig.render.target import Saving, Target

LEARNS = Learns(
    algorithms=tuple(formats.ADVANTAGES),
    engines=("sglang",),
    placements=("colocated", "split"),
    away=((), (learning.WEIGHTS, learning.STATES)),  # all of the process's memory, by torch_memory_saver
    epochs=False,
    reference="swapped",
    rewards={"server": Rewarding(by="service")},
    ranks_of_data=("sglang",),
)
# Those whose published weights it loads into Megatron (backends/megatron_utils/hf_to_megatron) and hands to SGLang.
MODEL_TYPES = ("deepseek_v3", "glm4_moe", "llama", "qwen2", "qwen2_moe", "qwen3", "qwen3_moe", "qwen3_next")
# Options for a batch, data and checkpoints of Megatron-LM's own loop, which slime's takes the place of.
_OWN_LOOP = words_of(
    """
    --micro-batch-size --global-batch-size --train-iters --mock-data --data-path
    --split --tokenizer-type --tokenizer-model --no-create-attention-mask-in-dataloader --eval-iters
    --eval-interval --log-interval --log-throughput --ckpt-format --save
    --save-interval --load --tensorboard-dir --wandb-project --wandb-exp-name
    --wandb-save-dir
    """
)


def variables(plan: Plan) -> dict[str, object]:
    """Return the templates' variables: release, arrays, notes, reward URL, program (train.py colocated, else
    train_async.py), environment, `passed` (its names). PYTORCH_CUDA_ALLOC_CONF is dropped unless the placement is
    split: torch_memory_saver forbids expandable segments. Raises as `megatron.groups`.
    """
    arrays, version = _arrays(plan), megatron.version(plan)
    # The allocator's segments cannot expand where torch_memory_saver moves them to the host and back.
    alone = learning.section(plan).placement == "split"
    exported = tuple(
        each for each in environment.variables(plan, version) if alone or each.name != "PYTORCH_CUDA_ALLOC_CONF"
    )
    return {
        "framework": f"slime {formats.SLIME.release} with Megatron-LM {version}",
        "release": formats.SLIME.release,
        "arrays": arrays,
        "program": "train.py" if learning.section(plan).placement == "colocated" else "train_async.py",
        "variables": exported,
        "passed": tuple(each.name for each in exported),
        "notes": tuple(shared.step_notes(plan)),
        "reward_url": learning.reward_url(plan),
    }


def words(plan: Plan) -> list[str]:
    """Return all arguments as words."""
    return [text for lines in _arrays(plan).values() for line in lines for text in line]


def _problems(plan: Plan) -> Iterator[Problem]:
    """Yield what slime does not support: model types, other optimizers than Adam, and checkpoints of other runs to
    resume from.
    """
    yield from learning.of_types(plan, "slime", MODEL_TYPES)
    yield from learning.of_adam(plan, "slime")
    yield from learning.of_checkpoints(
        plan, "slime goes on from its own checkpoints; it starts from the model's weights"
    )


def _arrays(plan: Plan) -> dict[str, list[tuple[str, ...]]]:
    """Return {array of slime's scripts: its options}, without empty ones.

    Megatron-LM's groups without `_OWN_LOOP` (batch, data, checkpoints), and without --lr-decay-iters if the job states
    none, are in MODEL_ARGS (model, MoE), OPTIMIZER_ARGS
    (training, precision) and PERF_ARGS (all others); --enable-mtp-training is added with MTP layers. Raises as
    `megatron.groups`.
    """
    run = learning.run_of(plan)
    run.rewards.url = learning.reward_url(plan) or None
    dropped = _OWN_LOOP | ({"--lr-decay-iters"} if plan.training.lr_decay_iters is None else set())
    groups = {
        group.name: [option for option in group.options if option[0].partition("=")[0] not in dropped]
        for group in megatron.groups(plan)
    }
    # Without the switch heads that predict further tokens are loaded and not trained.
    heads = [("--enable-mtp-training",)] if plan.model.num_nextn_predict_layers else []
    arrays = {
        "MODEL_ARGS": [*groups.pop("MODEL_ARGS"), *groups.pop("MOE_ARGS", []), *heads],
        "ROLLOUT_ARGS": _options(formats.ROLLOUT, run),
        "ALGORITHM_ARGS": _options(formats.ALGORITHM, run),
        "OPTIMIZER_ARGS": [*groups.pop("TRAINING_ARGS"), *groups.pop("PRECISION_ARGS")],
        "PERF_ARGS": [*(line for lines in groups.values() for line in lines), *_options(formats.BATCH, run)],
        "SGLANG_ARGS": _options(formats.SGLANG, run),
        "CKPT_ARGS": _options(formats.CHECKPOINTS, run),
        "LOGGING_ARGS": _options(formats.LOGGING, run),
    }
    return {name: lines for name, lines in arrays.items() if lines}


def _options(table: Keys, run: SimpleNamespace) -> list[tuple[str, ...]]:
    return learning.options({name.replace("_", "-"): value for name, value in write(table, run).items()})


TARGETS = (
    Target(
        name=formats.SLIME.name,
        does="slime's arguments for reinforcement learning with Megatron-LM and SGLang, and train.sh",
        variables=variables,
        problems=_problems,
        words=words,
        assumes={"backend": "megatron"},
        learns=LEARNS,
        counts=STEPS_COUNTING,
        saving=Saving("--save", "bash train.sh --save DIR --save-interval 20"),
        ignored_fields={
            "split": "slime takes a file of prompts for training and others for evaluation",
            "eval_iters": "slime evaluates on files that --eval-prompt-data names",
            "tokenizer_model": "slime takes the model's tokenizer",
            "tokenizer_type": "slime takes the model's tokenizer",
        },
    ),
)

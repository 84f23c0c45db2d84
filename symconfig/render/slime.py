"""Target slime: the arguments of its train.py, Megatron-LM's own among them, in the arrays of its scripts.

Names and defaults are those of slime 0.3.1, slime/utils/arguments.py. It trains with packed sequences of any length
(`variable_seq_lengths`) and always with the distributed optimizer; what the job does not say of the algorithm is left
as slime has it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from symconfig.errors import Problem
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import environment
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedRl
from symconfig.render import learning, megatron, rewarding, step_words
from symconfig.render.learning import Learns
from symconfig.render.megatron_args import Group
from symconfig.render.rewarding import Rewarding
from symconfig.render.unsaid import Saving

NAME = "slime"
DOES = "slime's arguments for reinforcement learning with Megatron-LM and SGLang, and train.sh"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.STEPS
RELEASE = "0.3.1"
SAVING = Saving("--save", "bash train.sh --save DIR --save-interval 20")
UNSAID = {
    "split": "slime takes a file of prompts for training and others for evaluation",
    "eval_iters": "slime evaluates on files that --eval-prompt-data names",
    "tokenizer_model": "slime takes the model's tokenizer",
    "tokenizer_type": "slime takes the model's tokenizer",
}
# What makes each algorithm (scripts/ and docs of slime).
_ALGORITHMS: Mapping[str, tuple[tuple[str, ...], ...]] = {
    "grpo": (("--advantage-estimator", "grpo"),),
    "dapo": (("--advantage-estimator", "grpo"), ("--calculate-per-token-loss",)),
    "gspo": (("--advantage-estimator", "gspo"),),
    "reinforce_plus_plus": (("--advantage-estimator", "reinforce_plus_plus"), ("--normalize-advantages",)),
}
LEARNS = Learns(
    algorithms=tuple(_ALGORITHMS),
    engines=("sglang",),
    placements=("colocated", "split"),
    away=((), (learning.WEIGHTS, learning.STATES)),  # all of the process's memory, by torch_memory_saver
    epochs=False,
    reference="swapped",
    rewards={"server": Rewarding(by="service")},
    ranks_of_data=("sglang",),
)
# Those whose published weights it loads into Megatron (backends/megatron_utils/hf_to_megatron) and hands to SGLang.
MODEL_TYPES = (
    "deepseek_v3",
    "glm4_moe",
    "llama",
    "qwen2",
    "qwen2_moe",
    "qwen3",
    "qwen3_moe",
    "qwen3_next",
)
# Options for a batch, data and checkpoints of Megatron-LM's own loop, which slime's takes the place of.
_OWN_LOOP = frozenset(
    (
        "--micro-batch-size",
        "--global-batch-size",
        "--train-iters",
        "--mock-data",
        "--data-path",
        "--split",
        "--tokenizer-type",
        "--tokenizer-model",
        "--no-create-attention-mask-in-dataloader",
        "--eval-iters",
        "--eval-interval",
        "--log-interval",
        "--log-throughput",
        "--ckpt-format",
        "--save",
        "--save-interval",
        "--load",
        "--tensorboard-dir",
        "--wandb-project",
        "--wandb-exp-name",
        "--wandb-save-dir",
    )
)


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what slime cannot be told."""
    arrays, training, version = _arrays(plan), plan.training, megatron.version(plan)
    # The allocator's segments cannot expand where torch_memory_saver moves them to the host and back.
    alone = learning.section(plan).placement == "split"
    exported = tuple(
        each for each in environment.variables(plan, version) if alone or each.name != "PYTORCH_CUDA_ALLOC_CONF"
    )
    return {
        "framework": f"slime {RELEASE} with Megatron-LM {version}",
        "release": RELEASE,
        "arrays": arrays,
        "program": "train.py" if learning.section(plan).placement == "colocated" else "train_async.py",
        "phases": step_words.phases(plan),
        "variables": exported,
        "passed": tuple(each.name for each in exported),
        "notes": tuple(step_words.notes(plan)),
        "predicted_for": "",
        "reward_url": rewarding.address(plan),
        "prompt_data": " ".join(training.data_path),
        "tensorboard_dir": training.tensorboard_dir or "",
    }


def words(plan: Plan) -> list[str]:
    """Return all arguments, for a command of one's own. Raises InfeasibleError for what slime cannot be told."""
    return [text for lines in _arrays(plan).values() for line in lines for text in line]


def _arrays(plan: Plan) -> dict[str, list[tuple[str, ...]]]:
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return {name: list(lines) for name, lines in _sections(plan, plan.rl[0] if plan.rl else None) if lines}


def _problems(plan: Plan) -> Iterator[Problem]:
    options, training = plan.best.options, plan.training
    yield from learning.of_types(plan, "slime", MODEL_TYPES)
    yield from learning.of_samples(plan, "slime counts the samples of an update in micro-batches of each rank")
    yield from learning.of_megatron(plan, "slime")
    if options.moe_dispatcher == "allgather":
        what = "slime's sequences are of any length, for which Megatron-LM's allgather is not"
        yield Problem(
            what,
            field="moe_dispatcher",
            got="allgather",
            pins=("dispatcher=alltoall", "dispatcher=deepep", "dispatcher=hybridep"),
        )
    if training.load is not None and not training.loads_its_own:
        what = "slime goes on from its own checkpoints; it starts from the model's weights"
        yield Problem(what, field="training.load", got=training.load, need="the folder of training.save")


def _sections(plan: Plan, step: PlannedRl | None) -> Iterator[tuple[str, list[tuple[str, ...]]]]:
    """Yield the arguments in the arrays of slime's scripts."""
    rl, training = learning.section(plan), plan.training
    groups = {group.name: _kept(group, plan) for group in megatron.groups(plan)}
    yield "MODEL_ARGS", [*groups.pop("MODEL_ARGS"), *groups.pop("MOE_ARGS", []), *_mtp(plan)]
    yield (
        "ROLLOUT_ARGS",
        learning.options(
            {
                "num-rollout": training.train_iters,
                "rollout-batch-size": rl.prompts,
                "n-samples-per-prompt": rl.samples,
                "num-steps-per-rollout": rl.updates,
                "rollout-max-prompt-len": rl.prompt_length.max,
                "rollout-max-response-len": rl.response_length.max,
                "rollout-max-context-len": rl.longest,
                "rollout-temperature": 1,
                "rollout-shuffle": True,
                "rm-url": rewarding.address(plan) or None,
                "balance-data": True,
            }
        ),
    )
    yield "ALGORITHM_ARGS", [*_ALGORITHMS[rl.algorithm], *learning.options(_losses(plan))]
    yield "OPTIMIZER_ARGS", [*groups.pop("TRAINING_ARGS"), *groups.pop("PRECISION_ARGS")]
    room = step.tokens_per_gpu if step else rl.longest
    batch = {"use-dynamic-batch-size": True, "max-tokens-per-gpu": room}
    yield "PERF_ARGS", [*(line for lines in groups.values() for line in lines), *learning.options(batch)]
    yield "SGLANG_ARGS", learning.options(_engine(plan, step))
    yield (
        "CKPT_ARGS",
        learning.options({"save": training.save, "save-interval": training.save and training.save_interval}),
    )
    yield "LOGGING_ARGS", learning.options(_logging(plan))


def _kept(group: Group, plan: Plan) -> list[tuple[str, ...]]:
    """Return what slime takes of Megatron-LM's options, which has a batch, data and checkpoints of its own."""
    dropped = _OWN_LOOP | ({"--lr-decay-iters"} if plan.training.lr_decay_iters is None else set())
    return [option for option in group.options if option[0].partition("=")[0] not in dropped]


def _mtp(plan: Plan) -> list[tuple[str, ...]]:
    """Return the switch without which heads that predict further tokens are loaded and not trained."""
    return [("--enable-mtp-training",)] if plan.model.num_nextn_predict_layers else []


def _losses(plan: Plan) -> dict[str, object]:
    rl = learning.section(plan)
    kl = {"use-kl-loss": True, "kl-loss-coef": 0.001, "kl-loss-type": "low_var_kl"} if rl.reference else {}
    clipped = learning.clipped(rl, "eps-clip", "eps-clip-high")
    return {**clipped, **kl, "entropy-coef": 0.001 if rl.entropy else 0.0}


def _engine(plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    rl, most = learning.section(plan), learning.section(plan).rollout.max_num_seqs
    arguments: dict[str, object] = {
        "colocate": rl.placement == "colocated",
        "num-gpus-per-node": plan.cluster.gpus_per_node,
    }
    if step is not None:
        arguments |= {
            "no-offload-train": rl.placement == "colocated" and not step.away,
            "rollout-num-gpus": step.rollout_gpus if rl.placement == "split" else None,
            "rollout-num-gpus-per-engine": step.replica_gpus,
            **(_ranks_of_data(step) if step.rollout_dp > 1 else {}),
            "sglang-mem-fraction-static": step.memory_share,
            "sglang-max-running-requests": most,
            "sglang-server-concurrency": most,  # of each engine; its own default is 512
        }
    return arguments


def _ranks_of_data(step: PlannedRl) -> dict[str, object]:
    """Return what SGLang is told of an engine whose attention is apart on each rank of data."""
    experts = {"sglang-ep-size": step.replica_gpus, "sglang-dp-size": step.rollout_dp}
    return {"sglang-enable-dp-attention": True, **experts}


def _logging(plan: Plan) -> dict[str, object]:
    training = plan.training
    project = training.wandb_project
    return {
        "use-wandb": project is not None,
        "wandb-project": project,
        "wandb-group": project and (training.wandb_name or plan.model.name),
        "use-tensorboard": training.tensorboard_dir is not None,
        "tb-project-name": training.tensorboard_dir and plan.model.name,
        "tb-experiment-name": training.tensorboard_dir and (training.wandb_name or "symconfig"),
    }

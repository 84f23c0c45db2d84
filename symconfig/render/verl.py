"""Target verl: its Hydra overrides for a step of reinforcement learning with Megatron workers, and train.sh.

Names are those of verl 0.9.1, trainer/config. What the job does not say of the algorithm is left as verl has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass

from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import Rl
from symconfig.errors import Problem
from symconfig.formats.megatron import DEGREES
from symconfig.frameworks import counting
from symconfig.frameworks.megatron import adapters, environment
from symconfig.frameworks.megatron.bridge import fuses_rotations
from symconfig.plans.options import Options
from symconfig.plans.plan import Plan
from symconfig.plans.rl import PlannedRl
from symconfig.render import learning, rewarding, step_words
from symconfig.render.learning import Learns
from symconfig.render.rewarding import Rewarding
from symconfig.render.unsaid import Saving

NAME = "verl"
DOES = "verl's overrides for reinforcement learning with Megatron workers and an engine beside them, and train.sh"
ASSUMES = {"backend": "megatron"}
COUNTS = counting.STEPS
RELEASE = "0.9.1"
SAVING = Saving("trainer.save_freq", "bash train.sh trainer.save_freq=20 trainer.default_local_dir=DIR")
UNSAID = {
    "split": "verl takes files for training and for validation",
    "eval_iters": "verl validates on the whole of its validation file",
    "tokenizer_model": "verl takes the model's tokenizer",
    "tokenizer_type": "verl takes the model's tokenizer",
    "manual_gc_interval": "verl leaves the collection of garbage to Python",
    "train_iters": "a step is one batch of prompts; verl counts epochs of its data, or trainer.total_training_steps",
}
# How verl names the advantage of each algorithm, and what else makes it that one (recipes of its examples).
_ADVANTAGE: Mapping[str, Mapping[str, object]] = {
    "grpo": {"algorithm.adv_estimator": "grpo"},
    "dapo": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.actor.loss_agg_mode": "token-mean",
    },
    "gspo": {
        "algorithm.adv_estimator": "grpo",
        "actor_rollout_ref.actor.policy_loss.loss_mode": "gspo",
        "actor_rollout_ref.actor.loss_agg_mode": "seq-mean-token-mean",
    },
    "rloo": {"algorithm.adv_estimator": "rloo"},
    "reinforce_plus_plus": {"algorithm.adv_estimator": "reinforce_plus_plus"},
    "remax": {"algorithm.adv_estimator": "remax"},
    "ppo": {"algorithm.adv_estimator": "gae"},
}
# main_ppo has the engine on the actor's GPUs. Rewards come from engines of their own, beside it asleep in turn, or on
# GPUs of a pool of their own, which answer while others generate (experimental/reward_loop).
LEARNS = Learns(
    algorithms=tuple(_ADVANTAGE),
    engines=("vllm", "sglang"),
    adapters=True,
    rewards={"colocated": Rewarding(by="engine"), "apart": Rewarding(by="engine", overlaps="generation")},
    ranks_of_data=("vllm",),
    reads_apart=True,
)
_REWARD = "reward.reward_model"
_ACTOR, _ROLLOUT, _REF = (f"actor_rollout_ref.{name}" for name in ("actor", "rollout", "ref"))
_ENDS = {
    "first_stage_layers": "num_layers_in_first_pipeline_stage",
    "last_stage_layers": "num_layers_in_last_pipeline_stage",
    "account_for_embedding": "account_for_embedding_in_pipeline_split",
    "account_for_loss": "account_for_loss_in_pipeline_split",
}


def variables(plan: Plan) -> dict[str, object]:
    """Return what its templates see. Raises InfeasibleError for what verl cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    exported = environment.variables(plan, plan.best.target.version)
    return {
        **shown(plan, MEGATRON),
        "variables": [each for each in exported if each.name == "CUDA_DEVICE_MAX_CONNECTIONS"],
        "notes": tuple(step_words.notes(plan)),
    }


def shown(plan: Plan, workers: Workers) -> dict[str, object]:
    """Return what the templates see of a plan for some workers."""
    return {
        "framework": f"verl {RELEASE}",
        "release": RELEASE,
        "config_name": workers.config,
        "arrays": {name: [[word] for word in _overrides(values)] for name, values in sections(plan, workers)},
        "phases": step_words.phases(plan),
        "reward_model": rewarding.published(plan),
        "critic": learning.critic(plan),
        "predicted_for": "",
        "train_files": _value(list(plan.training.data_path)) if plan.training.data_path else "",
        "tensorboard_dir": plan.training.tensorboard_dir or "",
    }


def words(plan: Plan) -> list[str]:
    """Return all overrides, for a command of one's own. Raises InfeasibleError for what verl cannot be told."""
    learning.refuse(plan, LEARNS, NAME, _problems(plan))
    return overrides(plan, MEGATRON)


def overrides(plan: Plan, workers: Workers) -> list[str]:
    """Return all overrides of a plan for some workers."""
    return [word for _, values in sections(plan, workers) for word in _overrides(values)]


def _overrides(values: Mapping[str, object]) -> tuple[str, ...]:
    """Return overrides as Hydra reads them."""
    return tuple(f"{name}={_value(value)}" for name, value in values.items())


def _value(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, list | tuple):
        return "[" + ",".join(map(_value, value)) + "]"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _problems(plan: Plan) -> Iterator[Problem]:
    options, rl = plan.best.options, learning.section(plan)
    yield from learning.of_stages(plan, "verl")
    yield from of_updates(rl)
    if options.optimizer_offload:
        what = "an optimizer that steps on the host is not written for verl"
        yield Problem(what, field="optimizer_offload", pins=("optimizer_offload=0",))
    tp, words = plan.best.parallel.tp, plan.model.vocab_size
    if words % tp:  # GPTModelProvider.should_pad_vocab of Megatron-Bridge is off, and verl leaves it so
        pins = tuple(f"tp={ranks}" for ranks in range(1, tp) if words % ranks == 0)
        what = f"verl's workers do not pad the vocabulary, and {words:,} words cannot be split over tp {tp}"
        yield Problem(what, field="tp", got=str(tp), need=f"a divisor of {words:,}", pins=pins)
    yield from (Problem(reason, field="adapter") for _, reason in adapters.refusals(plan.model))
    yield from learning.of_megatron(plan, "verl")


def of_updates(rl: Rl) -> Iterator[Problem]:
    """Yield the refusal of updates of different sizes."""
    if rl.prompts % rl.updates:
        what, need = "verl divides a step's prompts over its updates", f"a divisor of {rl.prompts}"
        yield Problem(what, field="rl.updates", got=str(rl.updates), need=need)


def sections(plan: Plan, workers: Workers) -> Iterator[tuple[str, Mapping[str, object]]]:
    """Yield the overrides by what they are about."""
    rl, step = learning.section(plan), plan.rl[0] if plan.rl else None
    yield "ALGORITHM", _algorithm(rl)
    yield "DATA", _data(rl)
    yield "ACTOR", _actor(plan, rl, step) | workers.actor(plan, step)
    if rl.has_critic:
        yield "CRITIC", _critic(plan, rl, step) | workers.critic(plan, step)
    yield "ROLLOUT", _rollout(rl, step)
    if rl.reward_model is not None:
        yield "REWARD", _reward(plan, rl)
    yield "TRAINER", _trainer(plan)


def _algorithm(rl: Rl) -> dict[str, object]:
    return {
        **_ADVANTAGE[rl.algorithm],
        **learning.clipped(rl, f"{_ACTOR}.clip_ratio_low", f"{_ACTOR}.clip_ratio_high"),
        f"{_ACTOR}.use_kl_loss": rl.reference,
        f"{_ACTOR}.entropy_coeff": 0.001 if rl.entropy else 0,
    }


def _data(rl: Rl) -> dict[str, object]:
    return {
        "data.train_batch_size": rl.prompts,
        "data.max_prompt_length": rl.prompt_length.max,
        "data.max_response_length": rl.response_length.max,
        "data.filter_overlong_prompts": True,
    }


def _actor(plan: Plan, rl: Rl, step: PlannedRl | None) -> dict[str, object]:
    training, tokens = plan.training, step.tokens_per_gpu if step else rl.longest
    return {
        "actor_rollout_ref.model.use_remove_padding": True,
        f"{_ACTOR}.ppo_mini_batch_size": rl.prompts // rl.updates,
        f"{_ACTOR}.ppo_epochs": rl.epochs,
        f"{_ACTOR}.use_dynamic_bsz": True,
        f"{_ACTOR}.ppo_max_token_len_per_gpu": tokens,
        f"{_ACTOR}.optim.lr": training.lr,
        f"{_ACTOR}.optim.lr_warmup_steps": training.lr_warmup_iters,
        f"{_ACTOR}.optim.weight_decay": training.weight_decay,
        f"{_ACTOR}.optim.clip_grad": training.clip_grad,
    }


def _megatron_actor(plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    training, own = plan.training, f"+{_ACTOR}.optim.override_optimizer_config"
    return {
        **_engine(f"{_ACTOR}.megatron", plan, step, asdict(plan.best.parallel), plan.best.options),
        f"+{_ACTOR}.megatron.override_ddp_config.overlap_grad_reduce": plan.best.options.overlap.grad_reduce,
        f"{_ACTOR}.optim.lr_decay_style": training.lr_decay_style,
        f"{_ACTOR}.optim.min_lr": training.min_lr,
        f"{own}.adam_beta1": training.adam_beta1,
        f"{own}.adam_beta2": training.adam_beta2,
        f"{own}.adam_eps": training.adam_eps,
        **_adapters(plan),
        **_predictions(plan),
        f"{_REF}.megatron.param_offload": learning.section(plan).reference,
    }


def _predictions(plan: Plan) -> dict[str, object]:
    """Return what keeps layers of multi-token prediction, which verl drops by itself (utils/megatron_utils.py)."""
    words = ("enable", "enable_train") if plan.model.num_nextn_predict_layers else ()
    return {f"actor_rollout_ref.model.mtp.{word}": True for word in words}


def _adapters(plan: Plan) -> dict[str, object]:
    """Return the actor's adapters, which the engine takes as they are; the reference is the actor without them."""
    adapter, targets = plan.model.adapter, adapters.targets(plan.model)
    if adapter is None or targets is None:
        return {}
    at = "actor_rollout_ref.model.lora"
    return {
        f"{at}.type": {"LoRA": "lora", "CanonicalLoRA": "canonical_lora"}[targets.kind],
        f"{at}.rank": adapter.r,
        f"{at}.alpha": adapter.lora_alpha,
        f"{at}.dropout": adapter.lora_dropout,
        f"{at}.target_modules": targets.modules,
    }


def _engine(
    at: str, plan: Plan, step: PlannedRl | None, degrees: Mapping[str, int], options: Options
) -> dict[str, object]:
    """Return Megatron's degrees, what is moved and what is computed again, of the actor or the critic."""
    away, own = step.away if step else (), f"{at}.override_transformer_config"
    fields: dict[str, object] = {f"{at}.{DEGREES[name]}": degrees[name] for name in ("tp", "pp", "cp", "ep")}
    if degrees["vpp"] > 1:
        fields[f"{at}.virtual_pipeline_model_parallel_size"] = degrees["vpp"]
    fields |= {f"+{own}.{word}": getattr(options, name) for name, word in _ENDS.items() if getattr(options, name)}
    fields |= {f"+{own}.{word}": True for word in _fused(plan.model)}
    if options.moe_dispatcher is not None:
        fields[f"{at}.expert_tensor_parallel_size"] = degrees["etp"]
    if options.moe_dispatcher == "flex":
        fields[f"+{own}.moe_token_dispatcher_type"] = "flex"
        fields[f"+{own}.moe_flex_dispatcher_backend"] = options.moe_flex_backend
    fields |= {
        f"{at}.param_offload": learning.WEIGHTS in away,
        f"{at}.optimizer_offload": learning.STATES in away,
        f"{at}.sequence_parallel": options.sequence_parallel,
        f"{at}.dtype": learning.dtype(plan),
    }
    recompute = options.recompute
    if recompute.granularity == "full":
        fields |= {
            f"{own}.recompute_granularity": "full",
            f"{own}.recompute_method": recompute.method,
            f"{own}.recompute_num_layers": recompute.num_layers,
        }
    elif recompute.granularity == "selective":
        fields |= {
            f"{own}.recompute_granularity": "selective",
            f"{own}.recompute_modules": list(recompute.modules),
        }
    return fields


def _fused(model: ModelDescriptor) -> Iterator[str]:
    """Yield the fused kernels that a plan counts with and that Megatron-Bridge leaves off for some families (0.3.1 to
    0.6.0, models/qwen)."""
    if model.gated_mlp and model.hidden_act == "silu":
        yield "bias_activation_fusion"
    if fuses_rotations(model) and model.latent is None:
        yield "apply_rope_fusion"
    if model.experts is not None:
        yield from ("moe_grouped_gemm", "moe_permute_fusion", "moe_router_fusion")


def _critic(plan: Plan, rl: Rl, step: PlannedRl | None) -> dict[str, object]:
    named = learning.critic(plan)
    return {
        "critic.enable": True,
        **({"critic.model.path": named} if named else {}),
        "critic.ppo_max_token_len_per_gpu": (step.tokens_per_gpu if step else rl.longest),
    }


def _megatron_critic(plan: Plan, step: PlannedRl | None) -> dict[str, object]:
    degrees = (step.critic if step else None) or asdict(plan.best.parallel)
    options = (step.critic_options if step else None) or plan.best.options  # plans of earlier releases have none
    return {
        **_engine("critic.megatron", plan, step, degrees, options),
        "+critic.megatron.override_ddp_config.overlap_grad_reduce": options.overlap.grad_reduce,
    }


def _rollout(rl: Rl, step: PlannedRl | None) -> dict[str, object]:
    fields: dict[str, object] = {
        f"{_ROLLOUT}.name": rl.rollout.engine or LEARNS.engines[0],
        f"{_ROLLOUT}.n": rl.samples,
    }
    if step is not None:
        fields |= {
            f"{_ROLLOUT}.tensor_model_parallel_size": step.rollout_tp,
            f"{_ROLLOUT}.gpu_memory_utilization": step.memory_share,
            f"{_ROLLOUT}.max_num_seqs": rl.rollout.max_num_seqs,
            f"{_ROLLOUT}.free_cache_engine": True,
            f"{_ROLLOUT}.log_prob_max_token_len_per_gpu": step.read_per_gpu,
            **({f"{_REF}.log_prob_max_token_len_per_gpu": step.read_per_gpu} if rl.reference else {}),
        }
        if step.rollout_dp > 1:
            fields |= {
                f"{_ROLLOUT}.data_parallel_size": step.rollout_dp,
                f"{_ROLLOUT}.expert_parallel_size": step.replica_gpus,
            }
    return fields


def _reward(plan: Plan, rl: Rl) -> dict[str, object]:
    """Return what the engines are told that serve a network of rewards. Theirs sleep at level 1 beside the actor."""
    (nodes, gpus), own = rewarding.nodes(plan), plan.rl[0].reward if plan.rl else None
    fields: dict[str, object] = {
        f"{_REWARD}.enable": True,
        f"{_REWARD}.enable_resource_pool": nodes > 0,
        f"{_REWARD}.rollout.name": rl.rollout.engine or LEARNS.engines[0],
        f"{_REWARD}.rollout.prompt_length": rl.prompt_length.max,
        f"{_REWARD}.rollout.response_length": rl.response_length.max,
    }
    if own is not None:
        fields |= {
            f"{_REWARD}.rollout.tensor_model_parallel_size": own.tp,
            f"{_REWARD}.rollout.gpu_memory_utilization": own.memory_share,
        }
    return fields | ({f"{_REWARD}.nnodes": nodes, f"{_REWARD}.n_gpus_per_node": gpus} if nodes else {})


def _trainer(plan: Plan) -> dict[str, object]:
    training = plan.training
    loggers = {"wandb": training.wandb_project, "tensorboard": training.tensorboard_dir}
    fields: dict[str, object] = {"trainer.logger": ["console", *(name for name, given in loggers.items() if given)]}
    if training.wandb_project is not None:
        fields["trainer.project_name"] = training.wandb_project
    if training.distributed_timeout_minutes is not None:
        fields["actor_rollout_ref.nccl_timeout"] = 60 * training.distributed_timeout_minutes
    if training.save is not None:
        fields |= {"trainer.default_local_dir": training.save, "trainer.save_freq": training.save_interval}
    return fields


@dataclass(frozen=True, slots=True)
class Workers:
    """The workers of trained models: Hydra's configuration of them, and what an actor's and a critic's are told."""

    config: str
    actor: Callable[[Plan, PlannedRl | None], dict[str, object]]
    critic: Callable[[Plan, PlannedRl | None], dict[str, object]]


MEGATRON = Workers("ppo_megatron_trainer", _megatron_actor, _megatron_critic)

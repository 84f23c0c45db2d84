"""Rules about scripts of OpenRLHF: what it refuses, and what its users meet."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.recover.rl.values import OPENRLHF, Values
from symconfig.existing.rules.rl import RlFacts, of

OF_OPENRLHF = of(OPENRLHF)
_OF_GROUPS = ("rloo", "reinforce_baseline", "group_norm", "dr_grpo")
_RAY = (
    "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-8B --actor.num_nodes 1 "
    "--actor.num_gpus_per_node 8 --ref.num_nodes 1 --ref.num_gpus_per_node 8 --reward.remote_url reward.py "
    "--algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 8 --vllm.num_engines 4 "
    "--vllm.tensor_parallel_size 2 --train.colocate_all --vllm.enable_sleep --ds.enable_sleep "
    "--ds.packing_samples --ds.zero_stage 3 --actor.gradient_checkpointing_enable --vllm.gpu_memory_utilization 0.4 "
)


@OF_OPENRLHF.rule(
    "error",
    "Engines beside the actor have other GPUs than it",
    "With --train.colocate_all OpenRLHF asserts that the engines' GPUs are the actor's: "
    '"actor_num_nodes * actor_num_gpus_per_node must be equal to vllm_num_engines * vllm_tensor_parallel_size" '
    "(openrlhf/cli/train_ppo_ray.py; OpenRLHF#728).",
    _RAY + "--vllm.num_engines 8",
)
def colocated_engines_over_gpus(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    colocated = values.switch("train.colocate_all") and not values.switch("train.async_enable")
    engines, tp = values.whole("vllm.num_engines"), values.whole("vllm.tensor_parallel_size") or 1
    actor = _gpus_of(values, "actor")
    if colocated and engines is not None and engines * tp != actor:
        yield facts.problem(
            "vllm.num_engines", "do not have the actor's GPUs", f"{engines} of {tp} GPUs", f"{actor} GPUs"
        )


@OF_OPENRLHF.rule(
    "error",
    "A reference beside the actor has other GPUs than it",
    'OpenRLHF asserts "num_nodes and num_gpus_per_node must be the same when colocate actor and ref model" '
    "(openrlhf/cli/train_ppo_ray.py).",
    _RAY + "--ref.num_gpus_per_node 4",
)
def reference_on_other_gpus(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    colocated = values.switch("train.colocate_all") or values.switch("train.colocate_actor_ref")
    if not colocated or not values.number("algo.kl.init_coef"):
        return
    for number in ("num_nodes", "num_gpus_per_node"):
        ref, actor = values.whole(f"ref.{number}"), values.whole(f"actor.{number}")
        if ref != actor:
            yield facts.problem(f"ref.{number}", "is not the actor's", ref, actor)


@OF_OPENRLHF.rule(
    "error",
    "An advantage over a prompt's samples needs several",
    "OpenRLHF asserts more than one --rollout.n_samples_per_prompt for rloo, reinforce_baseline, group_norm and "
    "dr_grpo, and for dynamic filtering (openrlhf/cli/train_ppo_ray.py).",
    _RAY + "--rollout.n_samples_per_prompt 1",
)
def one_sample_of_a_group(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    if values.text("algo.advantage.estimator") not in _OF_GROUPS:
        return
    key = "rollout.n_samples_per_prompt"
    if (samples := values.whole(key)) is not None and samples < 2:
        yield facts.problem(key, "leaves nothing to compare a sample with", samples, "2 or more")


@OF_OPENRLHF.rule(
    "error",
    "Some ranks get no samples of a step",
    'OpenRLHF asserts "The number of sample batches must be greater than or equal to the effective number of actor '
    'processes": samples over --rollout.micro_batch_size, and data-parallel ranks (openrlhf/cli/train_ppo_ray.py).',
    _RAY + "--rollout.batch_size 8 --rollout.n_samples_per_prompt 2 --rollout.micro_batch_size 4",
)
def fewer_samples_than_ranks(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    names = ("rollout.n_samples_per_prompt", "rollout.batch_size", "rollout.micro_batch_size")
    samples, prompts, micro = (values.whole(name) or 1 for name in names)
    sharing = (values.whole("ds.ring_attn_size") or 1) * (values.whole("ds.tensor_parallel_size") or 1)
    ranks = (_gpus_of(values, "actor") or 1) // sharing
    if samples * prompts // micro < ranks:
        got = f"{samples * prompts // micro} micro-batches for {ranks} ranks"
        yield facts.problem("rollout.micro_batch_size", "leaves ranks without samples", got)


@OF_OPENRLHF.rule(
    "warning",
    "The optimizer's state stays on the GPU while the engine generates",
    "With --ds.enable_sleep OpenRLHF brings states and gradients to the host while vLLM is awake (DeepSpeed's "
    "offload_states; until DeepSpeed 0.17.5 under ZeRO-3 alone). Without it they lie beside the engine's share, and "
    "its users run out of memory: OpenRLHF#792, #808 (openrlhf/utils/deepspeed/deepspeed_utils.py).",
    _RAY.replace("--ds.enable_sleep ", ""),
)
def states_kept_beside_engine(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    colocated = values.switch("train.colocate_all") and not values.switch("train.async_enable")
    if not colocated or not values.switch("vllm.enable_sleep"):
        return
    if not (values.switch("ds.enable_sleep") or values.switch("ds.adam_offload")):
        yield facts.problem("ds.enable_sleep", "is off beside an engine that sleeps", need="it on")


def _gpus_of(values: Values, role: str) -> int | None:
    nodes, each = (values.whole(f"{role}.{number}") for number in ("num_nodes", "num_gpus_per_node"))
    return None if nodes is None or each is None else nodes * each

"""NeMo-RL's own reading of grpo.yaml and the words of train.sh: what it inherits, its MasterConfig, what its policy
checks of a cluster, and what its workers hand to Megatron-Core.

NeMo-RL is on no index: NEMO_RL_PATH names a checkout of v0.7.0. Stood in for: Ray, and what NeMo-RL imports and a CPU
has not; nothing of these is used here.
"""

from __future__ import annotations

import contextlib
import os
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import typing_extensions
from absent import stand_in, stand_in_for
from accepting import Values, answer, called, dry_run, ranks

_KNOWN = {
    "grpo": "nemo_rl.algorithms.grpo.GRPOConfig",
    "policy": "nemo_rl.models.policy.PolicyConfig",
    "policy.megatron_cfg": "nemo_rl.models.policy.MegatronConfig",
    "policy.generation.vllm_cfg": "nemo_rl.models.generation.vllm.config.VllmSpecificArgs",
    "data.train": "nemo_rl.data.ResponseDatasetConfig",
}
_FREE = ("policy.generation.vllm_kwargs",)  # of vLLM


class Stop(Exception):
    """Ends the policy where it would start its workers."""


def _prepare() -> Path:
    """Return NeMo-RL's checkout, which can be imported from then on. Raises ValueError where it is not here."""
    root = Path(os.environ.get("NEMO_RL_PATH", "nowhere")).absolute()
    if not (root / "nemo_rl" / "algorithms" / "grpo.py").exists():
        raise ValueError("needs NEMO_RL_PATH=FOLDER, a checkout of NeMo-RL v0.7.0")
    if "nemo_rl" not in sys.modules:
        if sys.version_info < (3, 12):  # pydantic wants these of an old Python
            for name in ("TypedDict", "NotRequired", "Required"):
                setattr(typing, name, getattr(typing_extensions, name))
        stand_in("ray", "tensorboard", "google")
        stand_in_for("nemo_rl")
        sys.path.insert(0, str(root))
        from nemo_rl.utils.config import register_omegaconf_resolvers

        register_omegaconf_resolvers()
    return root


def accept(folder: Path) -> Values:
    root = _prepare()
    from nemo_rl.algorithms.grpo import MasterConfig
    from nemo_rl.utils.config import load_config, parse_hydra_overrides
    from omegaconf import OmegaConf

    given = {"NEMO_RL": str(root), "TRAIN_DATA": "prompts.jsonl", "REWARD_MODEL": "rewards"}
    words = dry_run(folder, "train.sh", **given)
    assert words[:2] == ["uv", "run"], words
    assert Path(words[4]) == root / "examples" / "run_grpo.py", words[4]
    assert words[5] == "--config", words
    with mock.patch.dict(os.environ, {"NEMO_RL": str(root)}):
        read = load_config(words[6])
    own = OmegaConf.load(words[6])
    inherited = Path(OmegaConf.to_container(own)["defaults"]).name
    base = load_config(root / "examples" / "configs" / inherited)
    del own["defaults"]
    assert not (unknown := list(_unknown(own, base))), unknown
    config = OmegaConf.to_container(parse_hydra_overrides(read, words[7:]), resolve=True)
    master: Any = MasterConfig(**config)
    policy, cluster = master.policy, master.cluster
    reward = config["env"].get("reward_model") if config["data"]["default"]["env_name"] == "reward_model" else None
    cluster, rewarding = _divided(cluster, reward)
    world = cluster["num_nodes"] * cluster["gpus_per_node"]
    data_parallel = _policy(policy, world, cluster["gpus_per_node"])
    assert policy["train_global_batch_size"] % data_parallel == 0
    assert policy["megatron_cfg"]["enabled"]
    assert not policy["dtensor_cfg"]["enabled"]
    engine, samples = policy["generation"], master.grpo["num_generations_per_prompt"]
    assert world % engine["vllm_cfg"]["tensor_parallel_size"] == 0
    assert engine["vllm_cfg"]["max_model_len"] == policy["max_total_sequence_length"]
    updates, rest = divmod(master.grpo["num_prompts_per_step"] * samples, policy["train_global_batch_size"])
    assert rest == 0
    room, read = (policy["sequence_packing"][f"{kind}_mb_tokens"] for kind in ("train", "logprob"))
    assert min(room, read) >= policy["max_total_sequence_length"]
    parallel = _megatron(policy)
    return {
        **parallel,
        "dp": data_parallel,
        **ranks(cluster["num_nodes"], cluster["gpus_per_node"]),
        "tokens_per_gpu": room // parallel["cp"],
        "read_per_gpu": read // parallel["cp"],
        "precision": {"bfloat16": "bf16", "float16": "fp16"}[policy["precision"]],
        "clip_grad": policy["max_grad_norm"],
        "prompts": master.grpo["num_prompts_per_step"],
        "samples": samples,
        "updates": updates,
        "longest": policy["max_total_sequence_length"],
        "rollout_tp": engine["vllm_cfg"]["tensor_parallel_size"],
        "memory_share": engine["vllm_cfg"]["gpu_memory_utilization"],
        "rollout_dp": max(1, engine["vllm_cfg"]["expert_parallel_size"] // engine["vllm_cfg"]["tensor_parallel_size"]),
        **rewarding,
        "away": ["weights", "optimizer state"] if engine["colocated"]["enabled"] else [],
        "train_iters": master.grpo["max_num_steps"],
        "seed": master.grpo["seed"],
        "adapter": None,
    }


def _divided(cluster: Any, reward: Any) -> tuple[dict[str, int], Values]:
    """Return the cluster that trains, and what GPUs a network of rewards has, as `grpo.setup` divides them."""
    nodes, gpus = cluster["num_nodes"], cluster["gpus_per_node"]
    if reward is None:
        return {"num_nodes": nodes, "gpus_per_node": gpus}, {"reward_gpus": None}
    assert reward["model_name"] == "rewards", reward["model_name"]
    own = reward["resources"]
    left = (nodes, gpus - own["gpus_per_node"]) if nodes == 1 else (nodes - own["num_nodes"], gpus)
    found = {"reward_gpus": own["num_nodes"] * own["gpus_per_node"]}
    return {"num_nodes": left[0], "gpus_per_node": left[1]}, found


def _unknown(own: Any, base: Any, at: str = "") -> Any:
    """Yield the keys that NeMo-RL has neither in its example nor in its classes."""
    for key, value in own.items():
        path = f"{at}.{key}" if at else key
        if key not in base:
            module, _, name = _KNOWN.get(at, "builtins.dict").rpartition(".")
            __import__(module)
            if key not in getattr(getattr(sys.modules[module], name), "__annotations__", {}):
                yield path
        elif hasattr(value, "items") and path not in _FREE and hasattr(base[key], "items"):
            yield from _unknown(value, base[key], path)


def _policy(policy: Any, world: int, gpus_per_node: int) -> int:
    """Return the data-parallel ranks that NeMo-RL's policy has on a cluster, which it checks."""
    from nemo_rl.models.policy import lm_policy

    cluster = SimpleNamespace(
        world_size=lambda: world, num_gpus_per_node=gpus_per_node, _sorted_bundle_indices=None, node_count=lambda: 1
    )
    made: Any = object.__new__(lm_policy.Policy)
    with (
        mock.patch.object(lm_policy, "RayWorkerGroup", side_effect=Stop),
        mock.patch.object(lm_policy, "resolve_policy_worker_cls", lambda name, config: name),
        mock.patch.dict(os.environ, {"TORCH_CUDA_ARCH_LIST": "9.0"}),
        contextlib.suppress(Stop),
    ):
        made.__init__(cluster, policy, tokenizer=None)
    return int(made.data_parallel_size)


def _megatron(policy: Any) -> Values:
    """Return what NeMo-RL sets of Megatron-Core's configuration."""
    from nemo_rl.models.megatron import data, setup

    config = policy["megatron_cfg"]
    setup._validate_optimizer_config(policy)
    setup._validate_chunking_config(policy)
    data._get_pack_sequence_parameters_for_megatron(
        config, policy["make_sequence_length_divisible_by"], policy["max_total_sequence_length"]
    )
    model = SimpleNamespace(gated_linear_unit=True, recompute_granularity=None, recompute_modules=["core_attn"])
    for apply in (setup._apply_parallelism_config, setup._apply_moe_config, setup._apply_performance_config):
        apply(model, policy)
    optimizer, beside = config["optimizer"], config["distributed_data_parallel_config"]
    assert model.recompute_granularity != "full" or model.recompute_method == "uniform"
    values = called("tp pp cp ep sequence_parallel", model)
    for end in ("first", "last"):
        if (layers := getattr(model, f"num_layers_in_{end}_pipeline_stage", None)) is not None:
            values[f"layers_of_{end}_stage"] = layers
    if model.recompute_granularity == "selective":
        values["recompute_modules"] = model.recompute_modules
    return {
        **values,
        "vpp": 1,
        "etp": model.expert_tensor_parallel_size,
        "recompute": model.recompute_granularity or "none",
        "zero_stage": int(optimizer["use_distributed_optimizer"]),
        "grad_bytes": 4 if beside["grad_reduce_in_fp32"] else 2,
        "overlap_grad_reduce": beside["overlap_grad_reduce"],
        "overlap_param_gather": beside["overlap_param_gather"],
        "optimizer_offload": optimizer["optimizer_offload_fraction"] if optimizer["optimizer_cpu_offload"] else 0.0,
        **{name: optimizer[name] for name in ("lr", "min_lr", "weight_decay", "adam_beta1", "adam_beta2", "adam_eps")},
        **{name: config["scheduler"][name] for name in ("lr_decay_style", "lr_warmup_iters")},
    }


if __name__ == "__main__":
    answer(accept)

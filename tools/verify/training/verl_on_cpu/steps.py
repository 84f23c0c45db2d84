"""The steps of GRPO that verl's trainer asks its workers for (trainer/ppo/v1/trainer_base.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from counting import Counted

COUNTED = 1  # the step in which everything is there


def nested(rows: Any) -> torch.Tensor:
    return torch.nested.as_nested_tensor([torch.as_tensor(row) for row in rows], layout=torch.jagged)


def samples(prompts: torch.Tensor, responses: list[list[int]], advantages: torch.Tensor) -> Any:
    """Return samples as verl's trainer hands them to its workers: nested tensors, without padding."""
    from verl.utils import tensordict_utils as tu

    whole = [[*prompt, *response] for prompt, response in zip(prompts.tolist(), responses, strict=True)]
    ones = nested([torch.ones(len(response), dtype=torch.int64) for response in responses])
    tensors = {
        "prompts": nested(prompts),
        "responses": nested(responses),
        "input_ids": nested(whole),
        "position_ids": nested([torch.arange(len(row)) for row in whole]),
        "response_mask": ones,
        "loss_mask": ones.clone(),
        "advantages": nested([row[: len(response)] for row, response in zip(advantages, responses, strict=True)]),
    }
    return tu.get_tensordict(tensors, {"global_token_num": [len(row) for row in whole]})


def of_rank(engine: Any, lengths: list[int]) -> list[int]:
    """Return the samples of this rank, as the trainer balances them (_balance_batch)."""
    from verl.utils.seqlen_balancing import calculate_workload, get_seqlen_balanced_partitions

    work = calculate_workload(torch.tensor(lengths)).tolist()
    parts = get_seqlen_balanced_partitions(work, k_partitions=engine.get_data_parallel_size(), equal_size=True)
    return parts[engine.get_data_parallel_rank()]


def shared(worker: Any, made: Any) -> Any:
    """Return what the rank answers with whose answer verl collects of those that share samples, on all of them."""
    engine, place = worker.actor.engine, worker.actor.engine.get_data_parallel_rank()
    if engine.get_data_parallel_size() == dist.get_world_size():
        return made
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, (place, made if engine.is_mp_src_rank_with_outputs() else None))
    return next(answer for of, answer in answers if of == place and answer is not None)


def generated(worker: Any, config: Any, number: int) -> tuple[Any, float]:
    """Return this rank's samples of a step and the mean reward of all: the share of even words."""
    from verl.trainer.ppo.core_algos import compute_grpo_outcome_advantage

    data, count = config.data, config.actor_rollout_ref.rollout.n
    draw = torch.Generator().manual_seed(1)
    shape = (data.train_batch_size, data.max_prompt_length)
    prompts = torch.randint(2, worker.rollout.vocabulary, shape, generator=draw).repeat_interleave(count, 0)
    responses = worker.rollout.generate(prompts, data.max_response_length, number)
    rewards = torch.tensor([sum(word % 2 == 0 for word in row) / len(row) for row in responses])
    lengths = torch.tensor([len(row) for row in responses])
    masks = (torch.arange(data.max_response_length) < lengths[:, None]).float()
    groups = [place // count for place in range(len(responses))]
    advantages, _ = compute_grpo_outcome_advantage(rewards[:, None] * masks / lengths[:, None], masks, groups)
    mine = of_rank(worker.actor.engine, (data.max_prompt_length + lengths).tolist())
    return samples(prompts[mine], [responses[place] for place in mine], advantages[mine]), float(rewards.mean())


def step(worker: Any, config: Any, counted: Counted, number: int) -> dict[str, float]:
    """Run a step of GRPO, and return what a log says of it."""
    from verl.utils import tensordict_utils as tu
    from verl.workers.utils.padding import response_from_nested

    section = config.actor_rollout_ref
    actor, temperature, adapters = section.actor, section.rollout.temperature, section.model.lora_rank > 0
    with counted.phase("weights to the engine", worker, number == COUNTED):
        asyncio.run(worker.update_weights())
    held, reward = generated(worker, config, number)

    def read(name: str, run: Callable[[Any], Any], *, entropy: bool, **more: Any) -> torch.Tensor:
        request = held.clone(recurse=False)
        tu.assign_non_tensor(request, calculate_entropy=entropy, compute_loss=False, temperature=temperature, **more)
        with counted.phase(name, worker, number == COUNTED):
            made = run(request)
        return response_from_nested(tu.get(shared(worker, made), "log_probs"), held["response_mask"])

    held["old_log_probs"] = read("log-probabilities", worker.compute_log_prob, entropy=True)
    if actor.use_kl_loss:
        run = worker.compute_log_prob if adapters else worker.compute_ref_log_prob
        more = {"no_lora_adapter": True} if adapters else {}
        held["ref_log_prob"] = read("reference", run, entropy=False, **more)
    batch = actor.ppo_mini_batch_size * section.rollout.n
    tu.assign_non_tensor(
        held,
        calculate_entropy=actor.calculate_entropy or actor.entropy_coeff != 0.0,
        distillation_use_topk=False,
        distillation_only=False,
        global_batch_size=batch,
        mini_batch_size=batch,
        epochs=actor.ppo_epochs,
        seed=actor.data_loader_seed,
        dataloader_kwargs={"shuffle": actor.shuffle},
        temperature=temperature,
    )
    rate = counted.kind.rate(worker.actor.engine)
    with counted.phase("update", worker, number == COUNTED):
        made = worker.update_actor(held)
    norms = tu.get(shared(worker, made), "metrics")["grad_norm"]
    return {
        "loss": -reward,
        "learning_rate": rate,
        "sequences": batch,
        "grad_norm": min(norms) if isinstance(norms, list) else norms,
    }

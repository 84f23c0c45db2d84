"""verl's own workers without a GPU, without Ray and without vLLM: steps of GRPO, as train.sh says them.

Usage: python workers.py RANKS STEPS, in the folder of train.sh, with the Python that has verl; each rank is this file
again. verl composes its configuration from the words of train.sh and builds its worker (workers/engine_workers.py,
ActorRolloutRefWorker: actor and reference in shards of FSDP 2, AdamW and its schedule). The worker hands its weights
over, computes log-probabilities, those of the reference, and updates the actor, on samples that verl's own functions
weigh, balance and pack, as its trainer asks it to (trainer/ppo/v1/trainer_base.py). In the second step each rank counts
what it has.

Stood in for: Ray and what serves vLLM, which are imported and not used; vLLM, by a model of Transformers that gets the
weights tensor by tensor; flash attention (flash_on_cpu); the GPU, by the CPU under a name of its own, so that what
goes to the host is noted, though nothing moves; pinned memory; and the compiled kernel of the entropy.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

FORMATS = str(Path(__file__).resolve().parents[2] / "formats")
sys.path.append(FORMATS)
from absent import stand_in  # noqa: E402
from accepting import dry_run  # noqa: E402

sys.path.remove(FORMATS)  # whose folders would be found as packages

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import transformers  # noqa: E402
from torch._C._profiler import _EventType  # noqa: E402
from torch.distributed.fsdp import CPUOffloadPolicy  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from transformers import modeling_flash_attention_utils as flash  # noqa: E402

ENDING = 16  # one in so many words ends a response
ROWS = 4  # of logits in fp32 at once, where a GPU's kernel has them in registers
COUNTED = 1  # the step in which everything is there


class Device(str):
    """The name of the GPU that is not there: equal to the host's, and a kind of its own."""


GPU = Device("cpu")


def platform() -> Any:
    """Return verl's device, as a CPU has it."""
    from verl.plugin.platform import PlatformBase

    def nothing(*given: Any, **options: Any) -> int:
        return 0

    ignored = "empty_cache set_device memory_allocated memory_reserved max_memory_allocated max_memory_reserved"
    module = SimpleNamespace(
        **dict.fromkeys(ignored.split(), nothing),
        **{name: getattr(torch.cpu, name) for name in ("current_device", "device_count", "synchronize")},
        is_available=lambda: False,
        get_device_name=lambda: "CPU",
        mem_get_info=lambda *given: (0, 0),
        get_rng_state=torch.get_rng_state,
        set_rng_state=torch.set_rng_state,
    )
    made: dict[str, Any] = dict.fromkeys(PlatformBase.__abstractmethods__, nothing)
    made |= {
        "device_name": property(lambda self: GPU),
        "vendor_name": property(lambda self: "nvidia"),
        "device_module": property(lambda self: module),
        "current_device": lambda self: torch.device("cpu"),
        "communication_backend_name": lambda self: "gloo",
        "visible_devices_envvar": lambda self: "CUDA_VISIBLE_DEVICES",
        "ray_resource_name": lambda self: "GPU",
        "ray_noset_envvars": lambda self: [],
    }
    return type("Cpu", (PlatformBase,), made)()


class Entropy(torch.autograd.Function):
    """The entropy of logits[T, V], whose gradient alone is beside them: what torch.compile makes of verl's."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(logits)
        return torch.cat([_entropy(rows) for rows in logits.split(ROWS)])

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (logits,) = ctx.saved_tensors
        made = torch.empty_like(logits)
        for out, rows, scale in zip(made.split(ROWS), logits.split(ROWS), gradient.split(ROWS), strict=True):
            part = rows.detach().requires_grad_()
            with torch.enable_grad():
                out.copy_(torch.autograd.grad(_entropy(part), part, scale)[0])
        return made


def _entropy(logits: torch.Tensor) -> torch.Tensor:
    return torch.distributions.Categorical(logits=logits.float()).entropy()


class Engine:
    """Generates with Transformers: words are drawn, and a few of them end a response."""

    def __init__(self, config: Any, model_config: Any, device_mesh: Any) -> None:
        self.sleep_level = 2
        self.model = transformers.AutoModelForCausalLM.from_pretrained(model_config.local_path, dtype=torch.float32)
        self.vocabulary = self.model.config.vocab_size
        self.frozen = {name: weight.detach().clone() for name, weight in self.model.named_parameters()}

    async def resume(self, tags: list[str]) -> None:
        """Wake, which takes nothing here."""

    async def update_weights(self, weights: Any, peft_config: Any = None, **more: Any) -> None:
        """Take whole weights; of adapters these alone, which are added to the frozen ones."""
        given = {name: tensor.float().clone() for name, tensor in weights}
        if peft_config is not None:
            scale = peft_config["lora_alpha"] / peft_config["r"]
            given = dict(_merged(self.frozen, given, scale))
        missing = self.model.load_state_dict({**self.frozen, **given})
        assert not missing.unexpected_keys, missing

    @torch.no_grad()
    def generate(self, prompts: torch.Tensor, most: int, seed: int) -> list[list[int]]:
        """Return a response to each of prompts[B, T]."""
        draw = torch.Generator().manual_seed(seed)
        alive = torch.ones(len(prompts), dtype=torch.bool)
        responses: list[list[int]] = [[] for _ in prompts]
        words, cache = prompts, transformers.DynamicCache()
        for _ in range(most):
            logits = self.model(input_ids=words, past_key_values=cache).logits[:, -1]
            words = torch.multinomial(logits.softmax(-1), 1, generator=draw)
            for place in alive.nonzero().flatten().tolist():
                responses[place].append(int(words[place]))
            alive &= words[:, 0] >= self.vocabulary // ENDING
            if not alive.any():
                break
        return responses


def _merged(
    frozen: dict[str, torch.Tensor], given: dict[str, torch.Tensor], scale: float
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the frozen weights that have adapters, with these added."""
    for name, down in given.items():
        if ".lora_A." in name:
            target = name.split("base_model.model.")[-1].split(".lora_A.")[0] + ".weight"
            yield target, frozen[target] + scale * given[name.replace(".lora_A.", ".lora_B.")] @ down


def stand_ins() -> None:
    """Put the CPU in the place of what a GPU has."""
    stand_in("ray", "uvicorn", "fastapi", "zmq")
    for name in ("vllm_rollout", "vllm_rollout.utils"):  # the least rank of adapters that vLLM serves
        sys.modules[f"verl.workers.rollout.{name}"] = ModuleType(name)
    served: Any = sys.modules["verl.workers.rollout.vllm_rollout.utils"]
    served.get_vllm_max_lora_rank = lambda rank: rank
    flash.FLASH_ATTENTION_COMPATIBILITY_MATRIX[2].update(
        general_availability_check=lambda *given: True,
        pkg_availability_check=lambda *given, **options: True,
        supported_devices=((lambda: True, "cuda"),),
    )
    flash.is_flash_attn_2_available = lambda *given, **options: True
    torch.compile = lambda function=None, **options: Entropy.apply  # type: ignore[assignment]
    os.environ["VERL_ENGINE_DEVICE"] = "cuda"
    from verl.plugin.platform import set_platform

    set_platform(platform())
    from verl.workers import engine_workers
    from verl.workers.engine.fsdp import transformer_impl

    transformer_impl.CPUOffloadPolicy = lambda pin_memory: CPUOffloadPolicy(pin_memory=False)
    engine_workers.get_rollout_class = lambda *given: Engine


def composed(words: list[str]) -> Any:
    """Return verl's configuration of the words of train.sh."""
    from hydra import compose, initialize_config_module

    start = words.index("--config-name")
    with initialize_config_module(version_base=None, config_module="verl.trainer.config"):
        return compose(config_name=words[start + 1], overrides=words[start + 2 :])


class Counted:
    """What a rank has in each phase of the step that is counted."""

    def __init__(self) -> None:
        self.phases: dict[str, dict[str, Any]] = {}
        self.now: dict[str, Any] = {}
        self.on_host: set[str] = set()

    def watch(self) -> None:
        """Note the micro-batches that verl makes, what it sends to the host, and what there is when it steps."""
        from verl.workers.engine.fsdp import transformer_impl as impl

        packed, moved, stepped = impl.prepare_micro_batches, impl.FSDPEngine.to, impl.FSDPEngine.optimizer_step
        forward = impl.FSDPEngineWithLMHead.forward_step

        def prepare(*given: Any, **options: Any) -> Any:
            made = packed(*given, **options)
            self.now.setdefault("tokens", []).append([int(each["input_ids"].values().numel()) for each in made[0]])
            return made

        def to(engine: Any, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            parts = {name for name, on in (("weights", model), ("optimizer state", optimizer)) if on}
            if not engine.engine_config.forward_only:
                self.on_host = self.on_host - parts if isinstance(device, Device) else self.on_host | parts
            moved(engine, device=device, model=model, optimizer=optimizer, grad=grad)

        def step(engine: Any) -> Any:
            self.now["gradients"] = local(each.grad for each in engine.module.parameters())
            made = stepped(engine)
            self.now["optimizer state"] = local(moments(engine))
            return made

        def forwarded(engine: Any, *given: Any, **options: Any) -> Any:
            self.now["on the host"] = sorted(self.on_host)
            return forward(engine, *given, **options)

        impl.prepare_micro_batches, impl.FSDPEngine.to, impl.FSDPEngine.optimizer_step = prepare, to, step
        impl.FSDPEngineWithLMHead.forward_step = forwarded

    @contextmanager
    def phase(self, name: str, worker: Any, count: bool) -> Iterator[None]:
        self.now = {}
        if not count:
            yield
            return
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            yield
        actor = worker.actor.engine
        self.phases[name] = self.now | {
            "peak": most(seen, buffers=name != "update"),
            "weights": local(actor.module.parameters()),
            "gradients afterwards": local(each.grad for each in actor.module.parameters()),
            "on the host afterwards": sorted(self.on_host),
            "reference": local(worker.ref.engine.module.parameters()) if worker.ref is not None else 0,
        }


def moments(engine: Any) -> Iterator[torch.Tensor]:
    for state in engine.optimizer.state.values():
        yield from (each for each in state.values() if each.dim())


def local(tensors: Any) -> int:
    """Return the bytes of this rank's shards."""
    held = [each for each in tensors if each is not None]
    return sum(each.to_local().nbytes if hasattr(each, "to_local") else each.nbytes for each in held)


def most(seen: Any, *, buffers: bool) -> int:
    """Return the most bytes at once of what was allocated while a profiler looked, but for what gloo itself asks for.
    buffers: those of collectives, too, which gloo's threads give up when they come to it."""
    events: list[tuple[int, int, int, bool]] = []

    def walk(event: Any, path: tuple[str, ...]) -> None:
        if event.tag == _EventType.Allocation:
            own = event.extra_fields
            network = any("gloo" in name or name.startswith("c10d::") for name in path)
            gathered = any(name.startswith("FSDP::all_gather (") for name in path) and not buffers
            events.append((event.start_time_ns, own.ptr, own.alloc_size, not (network or gathered)))
        for child in event.children:
            walk(child, (*path, event.name))

    for root in seen.profiler.kineto_results.experimental_event_tree():
        walk(root, ())
    live: dict[int, int] = {}
    now = peak = 0
    for _, place, size, counts in sorted(events):
        now -= live.pop(place, 0)  # given up, by whichever thread
        if size > 0 and counts:
            live[place] = size
            now += size
            peak = max(peak, now)
    return peak


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


def shared(engine: Any, made: Any) -> Any:
    """Return what one of the ranks that split sequences between them answers with, on all of them."""
    if engine.ulysses_device_mesh is None:
        return made
    answers: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(answers, made)
    first = dist.get_rank() - engine.ulysses_device_mesh["sp"].get_local_rank()
    return answers[first]


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
            made = shared(worker.actor.engine, run(request))
        return response_from_nested(tu.get(made, "log_probs"), held["response_mask"])

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
    (rate,) = worker.actor.engine.lr_scheduler.get_last_lr()
    with counted.phase("update", worker, number == COUNTED):
        metrics = tu.get(shared(worker.actor.engine, worker.update_actor(held)), "metrics")
    norms = metrics["grad_norm"]
    return {
        "loss": -reward,
        "learning_rate": rate,
        "sequences": batch,
        "grad_norm": min(norms) if isinstance(norms, list) else norms,
    }


def in_turn(text: str) -> None:
    """Print a line of each rank, one after the other."""
    for rank in range(dist.get_world_size()):
        dist.barrier()
        if rank == dist.get_rank():
            print(f"\n{text}", flush=True)


def main(steps: int, words: list[str]) -> None:
    stand_ins()
    from verl.workers.engine_workers import ActorRolloutRefWorker

    dist.init_process_group("gloo")
    config = composed(words)
    section = config.actor_rollout_ref
    section.actor.optim.total_training_steps = steps  # as the trainer counts them
    reads = section.actor.use_kl_loss and section.model.lora_rank == 0
    worker = ActorRolloutRefWorker(config=section, role="actor_rollout_ref" if reads else "actor_rollout")
    counted = Counted()
    counted.watch()
    worker.init_model()
    for number in range(steps):
        line = step(worker, config, counted, number)
        if dist.get_rank() == 0:
            print("\nlogged " + json.dumps(line), flush=True)
    in_turn("counted " + json.dumps(counted.phases))
    in_turn(f"keeps the states of {sum(each.to_local().numel() for each in moments(worker.actor.engine)) // 2} numbers")
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        main(int(sys.argv[1]), sys.argv[2:])
    else:
        ranks, steps = sys.argv[1:]
        files = {"TRAIN_FILES": "rows.parquet", "VAL_FILES": "rows.parquet"}
        launcher = [
            "-m",
            "torch.distributed.run",
            "--nproc-per-node",
            ranks,
            "--master-port",
            os.environ["MASTER_PORT"],
        ]
        os.execv(
            sys.executable, [sys.executable, *launcher, __file__, steps, *dry_run(Path.cwd(), "train.sh", **files)]
        )

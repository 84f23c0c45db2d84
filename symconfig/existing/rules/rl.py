"""Rules about scripts of reinforcement learning: what verl and slime refuse, and what their users meet."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from symconfig.errors import Problem
from symconfig.existing.launch.dialects import verl
from symconfig.existing.launch.reading import Reading
from symconfig.existing.recover.rl.values import OPENRLHF, SLIME, TRL, VERL, Trainer, Values, Workers, of_verl
from symconfig.existing.rules.rule import Finding, Rules

# Rules about Megatron-LM that do not hold of workers of such a trainer: it cuts the batch and the sequences itself,
# gives its workers an environment of its own, shares the allocator with an engine, balances no experts, and takes the
# all-to-all where it is told to gather tokens (slime/backends/megatron_utils/arguments.py, validate_args).
_NOT_HERE = frozenset(
    (
        "batch-not-said",
        "batch-over-replicas",
        "missing-option",
        "environment-advised",
        "environment-missing",
        "environment-wrong",
        "repeated-option",
        "vocabulary-padded",
        "gradients-not-overlapped",
        "experts-not-balanced",
        "gathered-tokens",
    )
)


def holds(finding: Finding) -> bool:
    """Say whether what a rule about Megatron-LM finds holds of a trainer of reinforcement learning, too."""
    return finding.rule not in _NOT_HERE


@dataclass(frozen=True, slots=True)
class RlFacts:
    """values: what verl or slime is told. gpus: all of them; None: not known."""

    reading: Reading
    values: Values
    gpus: int | None = None

    @property
    def trainer(self) -> Trainer:
        return self.values.trainer

    def problem(self, key: str, what: str, got: object = None, need: object = None, hint: str | None = None) -> Problem:
        """Return a Problem about a key, where it stands."""
        shown = [None if each is None else str(each) for each in (got, need)]
        return self.values.problem(key, what, self.reading.file, got=shown[0], need=shown[1], hint=hint)

    @property
    def replicas(self) -> int | None:
        """Return the ranks among which verl shares the samples of an update; None: not known."""
        workers, gpus = self.workers, self.trained
        split = [f"actor.parallel.{name}" for name in (("cp", "tp", "pp") if workers.options else ("cp",))]
        ranks = math.prod(self.values.whole(name) or 1 for name in split)
        return gpus // ranks if workers.predicted and gpus is not None and gpus % ranks == 0 else None

    @property
    def workers(self) -> Workers:
        """Return what trains in verl."""
        return of_verl(verl.workers(self.reading.settings))

    @property
    def trained(self) -> int | None:
        """Return the GPUs of verl's trainer; None: not known."""
        nodes, each = (self.values.whole(f"world.{name}") for name in ("nodes", "gpus"))
        return None if nodes is None or each is None else nodes * each

    @property
    def longest(self) -> int | None:
        """Return the tokens of the longest sequence, as the script limits it."""
        if (whole := self.trainer.whole) is not None and (tokens := self.values.whole(whole)) is not None:
            return tokens
        parts = [self.values.whole(name) for name in self.trainer.longest]
        return sum(part for part in parts if part is not None) if all(parts) else None


def of(*trainers: Trainer) -> Rules[RlFacts]:
    """Return an empty table of rules that hold of scripts of these trainers."""
    return Rules(holds=lambda facts: facts.trainer in trainers)


OF_VERL, OF_SLIME = of(VERL), of(SLIME)
# What switches packing by tokens on, the ranks that share a sequence, and the tokens of a micro-batch on each.
_PACKED = {
    SLIME: ("use_dynamic_batch_size", "context_parallel_size", "max_tokens_per_gpu"),
    OPENRLHF: ("train.dynamic_batch_enable", "ds.tensor_parallel_size", "train.max_tokens_per_gpu"),
}
BEYOND = of(*_PACKED)
# What is on where a vLLM on the GPUs that train sleeps meanwhile.
_SLEEPS = {
    VERL: ("engine.sleeps",),
    OPENRLHF: ("train.colocate_all", "vllm.enable_sleep"),
    TRL: ("use_vllm", "vllm_enable_sleep_mode"),
}
OF_SLEEPERS = of(*_SLEEPS)
_VERL = (
    "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo data.max_prompt_length=1024 "
    "data.max_response_length=3072 actor_rollout_ref.model.path=Qwen/Qwen3-8B actor_rollout_ref.rollout.name=vllm "
    "trainer.n_gpus_per_node=8 trainer.nnodes=1 "
)
# A script that breaks no rule; an override behind it wins.
DYNAMIC = _VERL + "actor_rollout_ref.actor.use_dynamic_bsz=True "


@OF_VERL.rule(
    "error",
    "A dynamic micro-batch has no room for the longest sequence",
    'verl stops with "max_token_len must be greater than the sequence length" in the first step with a longer one '
    "(verl/utils/seqlen_balancing.py, rearrange_micro_batches; Trinity-RFT#398, verl-internvl#15). The tokens are "
    "those of all ranks of a sequence, the option times ulysses_sequence_parallel_size or context_parallel_size "
    "(verl#571).",
    DYNAMIC + "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=2048",
)
def tokens_below_longest(facts: RlFacts) -> Iterator[Problem]:
    """Yield each limit of tokens below the longest sequence; nothing where the longest is not known."""
    longest, values = facts.longest, facts.values
    if longest is None:
        return
    degree = values.whole("actor.parallel.cp") or 1
    for phase in ("actor", "rollout", "reference"):
        dynamic, tokens = f"{phase}.dynamic", f"{phase}.tokens"
        room = values.whole(tokens)
        stated = values.given(tokens) or phase == "actor"
        if values.switch(dynamic) and stated and room is not None and room * degree < longest:
            need = f"{-(-longest // degree):,} or more: prompt and response are {longest:,} tokens" + (
                f" on {degree} ranks" if degree > 1 else ""
            )
            yield facts.problem(tokens, "has no room for the longest sequence", f"{room:,}", need)


@BEYOND.rule(
    "warning",
    "The longest sequence is a micro-batch beyond the limit",
    "slime packs sequences up to --max-tokens-per-gpu times the ranks of context parallelism, OpenRLHF up to "
    "--train.max_tokens_per_gpu times those of tensor parallelism, and a longer one is a micro-batch by itself: the "
    "limit does not limit memory (slime/utils/dp_schedule.py; slime#1522; openrlhf/utils/seqlen_balancing.py).",
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 "
    "--rollout-max-prompt-len 1024 --rollout-max-response-len 8192 --use-dynamic-batch-size --max-tokens-per-gpu 4608",
)
def longest_beyond_tokens(facts: RlFacts) -> Iterator[Problem]:
    longest, values = facts.longest, facts.values
    packed = _PACKED[facts.trainer]
    if longest is None or not values.switch(packed[0]):
        return
    for tokens in packed[2:]:
        room, ranks = values.whole(tokens), values.whole(packed[1]) or 1
        if room is not None and room * ranks < longest:
            got, need = f"{room:,} on {ranks} ranks" if ranks > 1 else f"{room:,}", f"{-(-longest // ranks):,} or more"
            yield facts.problem(tokens, "is exceeded by the longest sequence", got, need)
            return


@OF_VERL.rule(
    "error",
    "Nothing says how large a micro-batch is",
    "verl asks for one of ppo_micro_batch_size_per_gpu and ppo_micro_batch_size where batches are not dynamic "
    '(verl/workers/config/actor.py, verl/utils/config.py: "Please set at least one of").',
    _VERL + "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=4",
)
def micro_batch_not_said(facts: RlFacts) -> Iterator[Problem]:
    if not facts.reading.complete:
        return
    for phase in ("actor", "rollout"):
        stated = facts.values.given(f"{phase}.micro") or facts.values.given(f"{phase}.micro_of_all")
        if not (facts.values.switch("actor.dynamic") or stated):
            off = facts.values.name("actor.dynamic")
            yield facts.problem(f"{phase}.micro", f"is missing, and {off} is off")


@OF_VERL.rule(
    "error",
    "An update has more prompts than a step",
    'verl stops with "train_batch_size must be >= actor.ppo_mini_batch_size" (verl/workers/config/actor.py, validate).',
    _VERL + "data.train_batch_size=128 actor_rollout_ref.actor.ppo_mini_batch_size=256 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=2",
)
def mini_batch_above_batch(facts: RlFacts) -> Iterator[Problem]:
    if facts.values.switch("actor.dynamic"):
        return
    step, update = facts.values.number("rl.prompts"), facts.values.whole("rl.update_prompts")
    if step and update is not None and step < update:
        key = "rl.update_prompts"
        yield facts.problem(key, "is more than a step's prompts", update, f"up to data.train_batch_size, {step:g}")


@OF_VERL.rule(
    "error",
    "A step's samples do not divide over the GPUs",
    "verl asserts where batches are not dynamic that the samples of a step, train_batch_size x rollout.n, are a "
    "multiple of the GPUs, with Megatron's workers of the replicas times a micro-batch (verl/utils/config.py, "
    'validate_config: "must be divisible by minimal possible batch size").',
    _VERL + "data.train_batch_size=100 actor_rollout_ref.actor.ppo_mini_batch_size=50 "
    "actor_rollout_ref.actor.ulysses_sequence_parallel_size=4 "
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=1 "
    "actor_rollout_ref.rollout.log_prob_micro_batch_size_per_gpu=1",
)
def samples_over_gpus(facts: RlFacts) -> Iterator[Problem]:
    values, micro = facts.values, "actor.micro"
    samples, replicas = _samples(facts, "rl.prompts"), facts.replicas
    if samples is None or replicas is None or facts.trained is None or values.switch("actor.dynamic"):
        return
    least = replicas * (values.whole(micro) or 1) if facts.workers.options else facts.trained
    if samples % least:
        got = f"{samples} samples with rollout.n"
        yield facts.problem("rl.prompts", "does not divide over the GPUs", got, f"a multiple of {least}")


@OF_VERL.rule(
    "error",
    "An update's samples do not divide over its replicas",
    "verl's workers assert that the samples of an update, ppo_mini_batch_size x rollout.n, are a multiple of their "
    "data-parallel ranks: the GPUs over those that share a sequence or a model (verl/workers/engine_workers.py, "
    "train_mini_batch).",
    DYNAMIC + "data.train_batch_size=120 actor_rollout_ref.actor.ppo_mini_batch_size=60",
)
def mini_batch_over_replicas(facts: RlFacts) -> Iterator[Problem]:
    key, replicas = "rl.update_prompts", facts.replicas
    samples = _samples(facts, key)
    if samples is not None and replicas is not None and samples % replicas:
        got = f"{samples} samples with rollout.n"
        yield facts.problem(key, "does not divide over the replicas", got, f"a multiple of {replicas}")


@OF_VERL.rule(
    "error",
    "A step's samples do not divide into its updates",
    "verl's workers assert that their part of a step is a whole number of updates "
    "(verl/utils/tensordict_utils.py, make_iterator).",
    DYNAMIC + "data.train_batch_size=256 actor_rollout_ref.actor.ppo_mini_batch_size=96",
)
def mini_batches_left_over(facts: RlFacts) -> Iterator[Problem]:
    key = "rl.update_prompts"
    step, update = facts.values.whole("rl.prompts"), facts.values.whole(key)
    if step is not None and update is not None and step > update and step % update:
        yield facts.problem(key, "does not divide a step's prompts", update, f"a divisor of {step}")


def _samples(facts: RlFacts, key: str) -> int | None:
    """Return the samples of so many prompts; None: not known."""
    prompts, each = facts.values.whole(key), facts.values.whole("rl.samples")
    return None if prompts is None or each is None else prompts * each


@OF_VERL.rule(
    "error",
    "Ranks share sequences that are padded",
    'verl stops with "When using sequence parallelism for actor/ref policy, you must enable use_remove_padding" '
    "(verl/workers/config/actor.py, validate; verl/workers/engine/fsdp/transformer_impl.py).",
    DYNAMIC + "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 "
    "actor_rollout_ref.model.use_remove_padding=False",
)
def padded_sequences_split(facts: RlFacts) -> Iterator[Problem]:
    key, packs = "actor.parallel.cp", "actor.packs"
    ranks = facts.values.whole(key) or 1
    if ranks > 1 and not facts.values.switch(packs):
        yield facts.problem(packs, f"is off, and {ranks} ranks share a sequence", need="True")


@OF_SLIME.rule(
    "warning",
    "A step's samples do not divide into its updates",
    "slime trains on rollout_batch_size x n_samples_per_prompt samples in updates of --global-batch-size, and drops "
    "those that are left over; fewer samples than one update has are an error (slime/utils/dp_schedule.py).",
    "python3 train.py --actor-num-nodes 1 --actor-num-gpus-per-node 8 --rollout-batch-size 32 "
    "--n-samples-per-prompt 8 --global-batch-size 96 --rollout-max-response-len 8192",
)
def samples_left_over(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    prompts, samples, batch = (
        values.whole(name) for name in ("rollout_batch_size", "n_samples_per_prompt", "global_batch_size")
    )
    if prompts is None or samples is None or batch is None:
        return
    if left := prompts * samples % batch:
        got, need = f"{left} of {prompts} x {samples} left over", f"a divisor of {prompts * samples}"
        yield facts.problem("global_batch_size", "does not divide a step's samples", got, need)


@OF_VERL.rule(
    "error",
    "The engine's GPUs do not divide those of the run",
    "verl asserts that the GPUs are a multiple of the rollout's tensor_model_parallel_size, which is not the actor's "
    '(verl/workers/engine_workers.py: "rollout world_size is not divisible by infer_tp"; verl#1191, #1785). The '
    "default is 2, so that one GPU needs it said.",
    DYNAMIC + "actor_rollout_ref.rollout.tensor_model_parallel_size=3",
)
def engine_over_gpus(facts: RlFacts) -> Iterator[Problem]:
    key = "step.rollout_tp"
    alone = any(facts.values.given(name) for name in ("rollout.nnodes", "rollout.n_gpus_per_node"))
    tp = None if alone else facts.values.whole(key)
    if tp is not None and facts.gpus is not None and facts.gpus % tp:
        yield facts.problem(key, "does not divide the GPUs that generate", tp, f"a divisor of {facts.gpus}")


@OF_SLEEPERS.rule(
    "warning",
    "Expandable segments beside an engine that sleeps",
    "vLLM's sleep mode puts weights and keys into a pool of its own. Until April 2026 it asserts that expandable "
    'segments are off (vllm#14189: "Expandable segments are not compatible with memory pool"); since vllm#40812 it '
    "turns them off itself where it allocates.",
    "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n" + DYNAMIC,
)
def expandable_beside_engine(facts: RlFacts) -> Iterator[Problem]:
    word = facts.reading.environment.get("PYTORCH_CUDA_ALLOC_CONF")
    if word is None or word.unknown or "expandable_segments:true" not in word.text.lower():
        return
    values, engine = facts.values, facts.values.text("rl.rollout.engine") if facts.trainer is VERL else "vllm"
    if engine == "vllm" and all(map(values.switch, _SLEEPS[facts.trainer])):
        what, need = "ends a vLLM before April 2026, which sleeps beside the actor", "expandable_segments:False"
        yield word.place.problem(what, field="PYTORCH_CUDA_ALLOC_CONF", got=word.text, need=need)

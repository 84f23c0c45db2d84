"""A launch script of a trainer of reinforcement learning, as its reader goes through it, with the model that it
names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Lengths, RewardModel, Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting, settings
from symconfig.existing.recover.deepspeed_model import named_model, named_targets, with_adapter
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl import bridged
from symconfig.existing.recover.rl.step import Step
from symconfig.existing.recover.rl.values import Values, Workers
from symconfig.existing.recover.run import Assumed, Described, Run, Supplied
from symconfig.existing.recover.zoo import zoo_match
from symconfig.formats.keys import Keys
from symconfig.formats.tuners import Trainer
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.plans.rl import PlannedReward


def described(reading: Reading, setting: Setting | None, supplied: Supplied) -> Described:
    """Return the model as of `named_model`, without its vision tower, which is recorded in `assumed`."""
    model, assumed = named_model(reading, setting, supplied)
    return without_images(Described(model, zoo_match(model), tuple(assumed)))


def without_images(described: Described) -> Described:
    """Return the model without its vision tower, with an assumption that says so; unchanged if it has none."""
    if described.model.vision is None:
        return described
    model = described.model.model_copy(update={"vision": None})
    left = Assumed("images", "none", "prompts with images are not predicted: the tower is left out")
    return Described(model, zoo_match(model), (*described.assumed, left))


def adapted(model: Described, reading: Reading, fields: Mapping[str, object]) -> Described:
    """Return the model with an adapter of these fields. Raises InputError if they are not valid for it."""
    problems: list[Problem] = []
    made = with_adapter(model.model, fields, problems)
    if made is None:
        raise InputError([replace(problem, file=reading.file) for problem in problems])
    return replace(model, model=made)


MANY = 4  # micro-batches of an update on each replica, at least, that are full whatever lengths are
PROMPT = 1024  # tokens of the longest prompt, where no option says it
_MEAN = 0.5  # of the longest, where nothing says how long sequences are in the mean


def lengths(longest: int, mean: float | None, what: str, assumed: list[Assumed]) -> Lengths:
    """Return mean and longest length in tokens of prompts or responses; the mean is at most `longest`.

    Without a mean half of the longest, at least 1, is taken, and recorded in `assumed`. what: "prompt" or "response".
    """
    if mean is None:
        why = f"half of the longest; --{what}-length says another mean"
        assumed.append(Assumed(f"{what}s", f"{_MEAN * longest:g} tokens in the mean", why))
    return Lengths(mean=min(float(longest), mean if mean is not None else max(1.0, _MEAN * longest)), max=longest)


@dataclass(slots=True)
class Script:
    """Base of the readers of one script; collects problems and assumptions in lists.

    Args:
        gpus: all of the launch.
        cluster: None until a run is asked for.
    """

    reading: Reading
    supplied: Supplied
    gpus: int = 0
    cluster: ClusterDescriptor | None = None
    trainer: Trainer = field(init=False)
    values: Values = field(init=False)
    problems: list[Problem] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = Values(self.trainer, self.reading.options, self.keys)

    @property
    def keys(self) -> Keys:
        """Return the table of the trainer's keys."""
        return self.trainer.keys

    def problem(self, key: str, what: str, **words: str | None) -> Problem:
        """Return a problem at an option's place, else in the script's file. words: got, need, hint."""
        return self.values.problem(key, what, self.reading.file, **words)

    def refusal(self) -> InputError:
        """Return an InputError with all collected problems, without duplicates; it is not raised here."""
        return InputError(list(dict.fromkeys([*self.problems, *self.values.arguments.problems])))

    def model(self, option: str, *, adapts: bool = True) -> Described | None:
        """Return the supplied model, or else the one that an option names, with the script's adapter if `adapts` and it
        has none.

        None with the reasons appended to `problems`.
        """
        try:
            named = described(self.reading, self._setting(option), self.supplied)
            fields = self.adapter(named.model) if adapts and named.model.adapter is None else None
            return named if fields is None else adapted(named, self.reading, fields)
        except InputError as error:
            self.problems += error.problems
            return None

    def _setting(self, option: str) -> Setting | None:
        return self.values.arguments.find(self.values.name(option))

    def adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        """Return the fields of the LoRA or QLoRA adapter; None if the rank is 0 or absent, so that all weights are
        trained.

        All linear layers are adapted if no modules are named; workers of Megatron-LM's options have other names for
        them. lora_alpha is None and dropout 0 without a value.
        """
        values = self.values
        if not (rank := values.number("adapter.r")):
            return None
        given = values.words("adapter.targets")
        plain = named_targets(given or ("all-linear",), model)
        return {
            "method": "qlora" if values.switch("adapter.quantised") else "lora",
            "r": int(rank),
            "target_modules": bridged.modules(given) if self.workers.options else plain,
            "lora_alpha": values.number("adapter.lora_alpha"),
            "lora_dropout": values.number("adapter.lora_dropout") or 0.0,
        }

    def longest_prompt(self, stated: int | None, otherwise: int, why: str) -> int:
        """Return the tokens of the longest prompt: stated, else `otherwise`, which is recorded in `assumed`."""
        if stated is None:
            self.assumed.append(Assumed("longest prompt", f"{otherwise:,} tokens", why))
        return stated or otherwise

    @property
    def assumes_lengths(self) -> bool:
        """Return whether a mean length of prompts or responses has to be assumed, as the user supplied none."""
        return None in (self.supplied.prompt_length, self.supplied.response_length)

    def section(self, prompt: int, response: int, **fields: object) -> Rl | None:
        """Return a step's numbers as a job's section; None with the reason appended to `problems` if they are invalid.

        prompt, response: longest, in tokens. Mean lengths are the supplied ones, else assumed and recorded in
        `assumed`.
        """
        mean = self.supplied
        fields |= {
            "prompt_length": lengths(prompt, mean.prompt_length, "prompt", self.assumed),
            "response_length": lengths(response, mean.response_length, "response", self.assumed),
        }
        try:
            return Rl.model_validate(fields, strict=False)
        except ValidationError as error:
            texts = [str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors(include_url=False)]
            self.problems += [Problem(f"makes no step: {text}", file=self.reading.file) for text in texts]
            return None

    def step_section(
        self, prompt: int, response: int, prompts: int, samples: int, batch: int, names: Mapping[str, str], **own: Any
    ) -> Rl | None:
        """Return a step's section with the fields that all programs share; None with the reason in `problems`.

        An unknown or absent algorithm is GRPO, another engine than sglang is vllm. Updates per step are prompts x
        samples // batch, or 1 if the samples do not divide by that. The engine is split from training if it has GPUs of
        its own (`apart`).

        Args:
            prompt, response: longest, in tokens.
            batch: samples per update.
            names: job's algorithm by the program's name of it.
            own: fields that replace the shared ones; those in its "rollout" do so one by one.
        """
        values, updates = self.values, max(1, prompts * samples // batch)
        engine, most = values.text("rl.rollout.engine"), values.whole("engine.max_num_seqs")
        rollout = {
            "engine": engine if engine in ("vllm", "sglang") else "vllm",
            "tp": values.whole("step.rollout_tp") or 1,
            "dp": values.whole("ranks.dp"),
            "memory_share": values.number("step.memory_share"),
            **({} if most is None else {"max_num_seqs": most}),
        }
        fields = {
            "algorithm": names.get(values.text("rl.algorithm") or "", "grpo"),
            "prompts": prompts,
            "samples": samples,
            "updates": updates if prompts * samples % updates == 0 else 1,
            "epochs": values.whole("rl.epochs") or 1,
            "entropy": bool(values.number("rl.entropy")),
            "placement": "split" if self.apart else "colocated",
            "rollout_gpus": self.apart or None,
        }
        return self.section(prompt, response, **fields | own | {"rollout": rollout | own.get("rollout", {})})

    def rewarded(self, step: Step, option: str, reward: PlannedReward) -> Step:
        """Return the step with the reward model that `option` names, placed as `reward` says: apart if it has GPUs of
        its own.

        If its model is not known the step is returned without it, and an assumption is recorded. A supplied model is
        not used for it.
        """
        try:
            model = described(self.reading, self._setting(option), replace(self.supplied, model=None))
        except InputError:
            why = "no name says which model it is, so that its memory and its time are not predicted"
            self.assumed.append(Assumed("reward model", "none", why, self.values.place(option)))
            return step
        placed = RewardModel(
            model=model.zoo, placement="apart" if reward.gpus else "colocated", gpus=reward.gpus or None
        )
        rl = step.rl.model_copy(update={"reward_model": placed})
        return replace(step, rl=rl, reward_model=model.model.of_values, reward=reward)

    @property
    def whole(self) -> bool:
        """Return whether Megatron-LM's options alone describe the model."""
        return False

    @property
    def apart(self) -> int:
        """Return the GPUs of the inference engine alone; 0 if it shares those that train."""
        return 0

    @property
    def workers(self) -> Workers:
        """Return the kind of workers that train."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the supplied Megatron-LM version, else the one that has most of the workers' options."""
        return resolve(self.supplied.megatron_version or version_of([each.name for each in self.megatron()]))

    def megatron(self) -> tuple[Setting, ...]:
        """Return the workers' settings as Megatron-LM's options; empty for other workers."""
        return ()

    @property
    def trained_gpus(self) -> int:
        return self.gpus - self.apart

    @property
    def sharing(self) -> int:
        """Return the ranks that share a micro-batch."""
        if not self.workers.options:
            return self.ranks
        return bridged.split(Namespace(self.megatron(), flags(self.version())))

    @property
    def ranks(self) -> int:
        """Return the ranks that share a micro-batch of workers that do not take Megatron-LM's options."""
        return 1

    @property
    def replicas(self) -> int:
        return max(1, self.trained_gpus // self.sharing)

    def of_megatron(
        self, model: Described, microbatches: int, length: int, micro: int, adapter: str, program: str | None = None
    ) -> Run:
        """Return the run by Megatron-Core's workers, of `microbatches` micro-batches per update over all replicas.

        length: tokens per sequence; micro: sequences per micro-batch. adapter: the key to name where adapters are
        refused; program: that adds them, None for Megatron-Bridge. Raises InputError.
        """
        own = ["--micro-batch-size", str(micro), "--global-batch-size", str(microbatches * micro)]
        own += ["--seq-length", str(length)]
        names = Namespace((*self.megatron(), *settings(own, self.reading.file)), flags(self.version()))
        wrong = partial(self.problem, adapter)
        return bridged.run(names, self.trained_gpus, self.known_cluster, self.supplied, model, wrong, program)

    def run(self) -> Run:
        """Return the trained model's run with the step around it. Raises InputError with all problems."""
        raise NotImplementedError

    @property
    def known_cluster(self) -> ClusterDescriptor:
        """Return the cluster; to be used only where a run is asked for, as it is asserted not to be None."""
        assert self.cluster is not None, "is there where a run is asked for"
        return self.cluster

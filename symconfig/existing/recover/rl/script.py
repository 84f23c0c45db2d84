"""A launch script of a trainer of reinforcement learning, as its reader goes through it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.rl import RewardModel, Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.reading import Reading, Setting
from symconfig.existing.recover.deepspeed_model import named_targets
from symconfig.existing.recover.namespace import version_of
from symconfig.existing.recover.rl import bridged
from symconfig.existing.recover.rl.model import adapted, described
from symconfig.existing.recover.rl.sequences import lengths, section
from symconfig.existing.recover.rl.step import Step
from symconfig.existing.recover.rl.trainers import Trainer, Workers
from symconfig.existing.recover.rl.values import Values
from symconfig.existing.recover.run import Assumed, Described, Run, Supplied
from symconfig.formats.keys import Keys
from symconfig.frameworks.megatron.flags import resolve
from symconfig.plans.rl import PlannedReward

MANY = 4  # micro-batches of an update on each replica, at least, that are full whatever lengths are


@dataclass(slots=True)
class Script:
    """One script on so many GPUs; what is wrong and what is assumed is gathered. cluster: where a run is asked for."""

    TRAINER: ClassVar[Trainer]

    reading: Reading
    supplied: Supplied
    gpus: int = 0
    cluster: ClusterDescriptor | None = None
    values: Values = field(init=False)
    problems: list[Problem] = field(default_factory=list)
    assumed: list[Assumed] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = Values(self.TRAINER, self.reading.options, self.keys)

    @property
    def keys(self) -> Keys:
        """Return the table of its keys."""
        return self.TRAINER.keys

    def problem(self, key: str, what: str, **words: str | None) -> Problem:
        """Return a Problem about an option, where it stands. words: its got and need."""
        return self.values.problem(key, what, self.reading.file, **words)

    def refusal(self) -> InputError:
        """Return all that keeps it from being predicted, each once."""
        return InputError(list(dict.fromkeys([*self.problems, *self.values.arguments.problems])))

    def model(self, option: str, *, adapts: bool = True) -> Described | None:
        """Return the model that an option names, with the adapters that it is trained by where it adapts; None with why
        in `problems`."""
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
        """Return the fields of the adapters that the model is trained by; None where all of it is trained."""
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

    @property
    def assumes_lengths(self) -> bool:
        """Tell whether nobody says how long sequences are in the mean."""
        return None in (self.supplied.prompt_length, self.supplied.response_length)

    def section(self, prompt: int, response: int, **fields: object) -> Rl | None:
        """Return the script's numbers as a job's section; None with why they make no step in `problems`. prompt,
        response: tokens of the longest."""
        mean = self.supplied
        fields |= {
            "prompt_length": lengths(prompt, mean.prompt_length, "prompt", self.assumed),
            "response_length": lengths(response, mean.response_length, "response", self.assumed),
        }
        try:
            return section(self.reading.file, **fields)
        except InputError as error:
            self.problems += error.problems
            return None

    def step_section(
        self, prompt: int, response: int, prompts: int, samples: int, batch: int, names: Mapping[str, str], **own: Any
    ) -> Rl | None:
        """Return a step's section with what all programs say alike. prompt, response: tokens of the longest. batch:
        samples of an update. names: algorithms by the program's advantages. own: fields that it says otherwise."""
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
        """Return the step with the network that an option names, which stands as `reward` says; where no name is known
        without it, and that is said."""
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
        """Tell whether Megatron-LM is told its model in the options, and by nothing else."""
        return False

    @property
    def apart(self) -> int:
        """Return the GPUs of an engine of its own; 0 where it has those that train."""
        return 0

    @property
    def workers(self) -> Workers:
        """Return what trains."""
        raise NotImplementedError

    def version(self) -> str:
        """Return the Megatron-LM release that its workers are read as."""
        return resolve(self.supplied.megatron_version or version_of([each.name for each in self.megatron()]))

    def megatron(self) -> tuple[Setting, ...]:
        """Return what its workers are told as Megatron-LM's options; nothing of others."""
        return ()

    def run(self) -> Run:
        """Return the trained model's run with the step around it. Raises InputError with all that keeps it from being
        predicted."""
        raise NotImplementedError

    @property
    def known_cluster(self) -> ClusterDescriptor:
        """Return the cluster of a run."""
        assert self.cluster is not None, "is there where a run is asked for"
        return self.cluster

"""A launch script of a trainer of reinforcement learning, as its reader goes through it, with the model that it
names."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.tuning import Lengths, RewardModel, Rl
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects.override import entries_of
from symconfig.existing.launch.dialects.translate import by_path, translated
from symconfig.existing.launch.reading import Reading, Setting, Word, settings
from symconfig.existing.recover import deepspeed, megatron
from symconfig.existing.recover.arguments import ABOVE_ZERO, WRONG
from symconfig.existing.recover.deepspeed_model import adapted, named_model, named_targets
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl.step import Packed, Step
from symconfig.existing.recover.rl.values import Values, Workers
from symconfig.existing.recover.run import Assumed, Described, Run, Supplied
from symconfig.existing.recover.zoo import zoo_match
from symconfig.formats.keys import Keys, Trainer
from symconfig.formats.megatron import DEGREES
from symconfig.formats.renamed import MS_SWIFT
from symconfig.frameworks.megatron.adapters import FUSED, peft_names, refusals
from symconfig.frameworks.megatron.flags import flags, resolve
from symconfig.plans.rl import PlannedReward


def described(reading: Reading, setting: Setting | None, supplied: Supplied) -> Described:
    """Return the supplied model, else the one that a setting names, without its vision tower. Raises as `named_model`.

    `assumed` says how the model was found, and that the tower is left out if it has one.
    """
    model, assumed = named_model(reading, setting, supplied)
    return without_images(Described(model, zoo_match(model), tuple(assumed)))


def without_images(described: Described) -> Described:
    """Return the model without its vision tower, with an assumption that says so; unchanged if it has none."""
    if described.model.vision is None:
        return described
    model = described.model.model_copy(update={"vision": None})
    left = Assumed("images", "none", "prompts with images are not predicted: the tower is left out")
    return Described(model, zoo_match(model), (*described.assumed, left))


MANY = 4  # micro-batches of an update on each replica, at least, that are full whatever lengths are
PROMPT = 1024  # tokens of the longest prompt, where no option says it
_MEAN = 0.5  # of the longest, where nothing says how long sequences are in the mean


# What Megatron-Bridge switches on by itself for experts (0.3.1 to 0.6.0, models).
EXPERTS = ("--moe-grouped-gemm", "--moe-permute-fusion")


def adapted_modules(given: Iterable[str]) -> tuple[str, ...]:
    """Return Megatron-Core's adapted layers by the descriptor's names, unknown ones unchanged; all for [] and "all"."""
    named = tuple(given)
    if not named or {"all-linear", "all", ""} & {*named}:
        return tuple(FUSED.values())
    return tuple(peft_names(name)[0] for name in named)


def megatron_options(settings: Iterable[Setting]) -> tuple[Setting, ...]:
    """Return keys of Megatron-Core's configuration or ms-swift as Megatron-LM's options; unknown keys are left out.

    A key without a value counts as true.
    """
    own = MS_SWIFT.keys()
    keys = (
        replace(each, name=f"model.{own.get(each.key, each.key)}", values=each.values or (Word.of("true", each.place),))
        for each in settings
    )
    return translated(by_path(entries_of(tuple(keys), False)))[0]


def gpus_per_replica(names: Namespace) -> int:
    """Return tp x pp x cp by Megatron-LM's options."""
    return math.prod(names.whole(DEGREES[name]) for name in ("tp", "pp", "cp"))


@dataclass(slots=True)
class Script:
    """Base of the readers of one script; collects problems and assumptions.

    gpus: all of the launch. cluster: None until a run is asked for.
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
        self.values = Values(self.reading.options, trainer=self.trainer, keys=self.keys)

    @property
    def keys(self) -> Keys:
        """Return the table of the trainer's keys."""
        return self.trainer.keys

    def problem(self, key: str, what: str, **words: str | None) -> Problem:
        """Return a problem at an option's place, else in the script's file. words: got, need, hint."""
        return self.values.problem(key, what, self.reading.file, **words)

    def model(self, option: str, *, adapts: bool = True) -> Described | None:
        """Return the supplied model, else the one that an option names, with the script's adapter if `adapts`.

        A model that has an adapter keeps its own. None with the reasons appended to `problems`.
        """
        try:
            named = described(self.reading, self.values.find(option), self.supplied)
            fields = self.adapter(named.model) if adapts and named.model.adapter is None else None
            return named if fields is None else adapted(named, self.reading, fields)
        except InputError as error:
            self.problems += error.problems
            return None

    @property
    def adapts(self) -> bool:
        """Return whether an adapter is trained: one of a rank other than 0."""
        return self.values.text("adapter.r") not in (None, "0")

    def adapter(self, model: ModelDescriptor) -> Mapping[str, object] | None:
        """Return the fields of the LoRA or QLoRA adapter; None if there is none.

        By default all linear layers, no dropout. Targets are read as Megatron-Core's names if the workers take its
        options. Raises InputError for an adapter without a rank or a malformed one, and as `Values.alpha`.
        """
        values = self.values
        if not self.adapts:
            return None
        if (rank := values.whole("adapter.r")) is None:
            unsaid = self.problem("adapter.r", "is not said", need=ABOVE_ZERO)
            raise InputError([unsaid] if values.silent("adapter.r") else values.problems)
        given = values.words("adapter.targets")
        plain = named_targets(given or ("all-linear",), model)
        return {
            "method": "qlora" if values.switch("adapter.quantised") else "lora",
            "r": rank,
            "target_modules": adapted_modules(given) if self.workers.options else plain,
            "lora_alpha": values.alpha(rank, self.reading.file),
            "lora_dropout": values.number("adapter.lora_dropout") or 0.0,
        }

    def longest_prompt(self, stated: int | None, otherwise: int, why: str) -> int:
        """Return the tokens of the longest prompt: stated, else `otherwise`, which is recorded in `assumed`."""
        if stated is None:
            self.assumed.append(Assumed("longest prompt", f"{otherwise:,} tokens", why))
        return stated or otherwise

    def sizes(self, *names: str) -> tuple[int, ...] | None:
        """Return fields or keys as positive integers; None if any is none, with a problem of each that is absent."""
        sizes = {name: self.values.whole(name) for name in names}
        self.problems += [self.problem(name, "is not said") for name in names if self.values.silent(name)]
        known = tuple(size for size in sizes.values() if size is not None)
        return known if len(known) == len(names) else None

    @property
    def assumes_lengths(self) -> bool:
        """Return whether a mean length of prompts or responses has to be assumed, as the user supplied none."""
        return None in (self.supplied.prompt_length, self.supplied.response_length)

    def step_section(
        self,
        prompt: int,
        response: int,
        names: Mapping[str, str],
        sizes: tuple[int, ...] | None = None,
        **own: Any,
    ) -> Rl | None:
        """Return a step's numbers as a job's section; None, with the reason in `problems` or those of `values`, if a
        size is missing or a value malformed or invalid.

        prompt, response: longest, in tokens; mean lengths are the supplied ones, else assumed. names: the job's
        algorithm by the program's name of it, else GRPO. sizes: prompts of a step, samples of a prompt, samples of an
        update (one update if they do not divide); by default as the options have them. own: fields that replace those
        that all programs share, those of its "rollout" one by one.
        """
        values = self.values
        if (sizes := sizes or self.sizes("rl.prompts", "rl.samples", "rl.batch")) is None:
            return None
        prompts, samples, batch = sizes
        updates = max(1, prompts * samples // batch)
        engine, most = values.text("rl.rollout.engine"), values.whole("engine.max_num_seqs")
        rollout = {
            "engine": engine if engine in ("vllm", "sglang") else "vllm",
            "tp": values.whole("step.rollout_tp") or 1,
            "dp": values.whole("ranks.dp"),
            "memory_share": values.number("step.memory_share"),
            **({} if most is None else {"max_num_seqs": most}),
        }
        fields: dict[str, Any] = {
            "algorithm": names.get(values.text("rl.algorithm") or "", "grpo"),
            "prompts": prompts,
            "samples": samples,
            "updates": updates if prompts * samples % updates == 0 else 1,
            "epochs": values.whole("rl.epochs") or 1,
            "entropy": bool(values.number("rl.entropy")),
            "placement": "split" if self.apart else "colocated",
            "rollout_gpus": self.apart or None,
        }
        fields |= own | {"rollout": rollout | own.get("rollout", {})}
        if values.problems:
            return None
        if fields["rollout"]["memory_share"] is None:
            self.problems.append(self.problem("step.memory_share", "the engine's share of the memory is not said"))
            return None
        lengths = {
            "prompt": (prompt, self.supplied.prompt_length),
            "response": (response, self.supplied.response_length),
        }
        try:
            for what, (longest, mean) in lengths.items():
                if mean is None:
                    why = f"half of the longest; --{what}-length says another mean"
                    self.assumed.append(Assumed(f"{what}s", f"{_MEAN * longest:g} tokens in the mean", why))
                    mean = max(1.0, _MEAN * longest)
                fields[f"{what}_length"] = Lengths(mean=min(float(longest), mean), max=longest)
            return Rl.model_validate(fields, strict=False)
        except ValidationError as error:
            texts = [str(item.get("ctx", {}).get("error", item["msg"])) for item in error.errors(include_url=False)]
            self.problems += [Problem(f"makes no step: {text}", file=self.reading.file) for text in texts]
            return None

    def step(self, rl: Rl, actor: Run, packed: Packed, **own: Any) -> Step:
        """Return the step around an actor's run, whose update has the micro-batches `packed` or smaller ones.

        Samples are read in such micro-batches, too, unless `own`, which holds further fields, has others. Memory
        depends on assumed lengths unless tokens fill the micro-batches, and at least `MANY` of them on each replica.
        """
        degrees = actor.configuration
        rl = rl.model_copy(update={"tokens_per_gpu": -(-packed.room // degrees.cp)})
        packed = packed.within(rl, degrees.dp)
        fill = packed.fill(rl, degrees.global_batch)
        full = packed.sequences is None and degrees.global_batch >= MANY * degrees.dp
        read = own.get("read") or packed.read(rl, degrees.dp)
        fields: dict[str, Any] = {"fill": fill, "critic_fill": fill, "read": read, "reference_read": read}
        fields["assumed_lengths"] = self.assumes_lengths and not full
        return Step(trainer=self.trainer, workers=self.workers, rl=rl, **fields | own)

    def rewarded(self, step: Step, option: str, reward: PlannedReward) -> Step:
        """Return the step with the reward model that `option` names, on GPUs of its own if `reward.gpus` is not 0.

        If the name tells no known model, the step is returned unchanged, and an assumption recorded that there is none.
        """
        try:
            model = described(self.reading, self.values.find(option), replace(self.supplied, model=None))
        except InputError:
            self.left_out(option)
            return step
        placed = RewardModel(
            model=model.zoo, placement="apart" if reward.gpus else "colocated", gpus=reward.gpus or None
        )
        rl = step.rl.model_copy(update={"reward_model": placed})
        return replace(step, rl=rl, reward_model=model.model.of_values, reward=reward)

    def undivided_heads(self, model: Described, ranks: int, option: str) -> Iterator[Problem]:
        """Yield a problem if the ranks that share a sequence do not divide the key/value heads."""
        heads = model.model.num_key_value_heads
        if heads % ranks:
            what = "copies of key/value heads for the ranks of a sequence are not predicted"
            yield self.problem(option, what, got=f"{heads} heads for {ranks} ranks")

    def left_out(self, key: str, what: str = "reward model") -> None:
        """Record as an assumption that a model that an option names is not there."""
        why = "its memory and its time are not predicted"
        self.assumed.append(Assumed(what, "none", why, self.values.place(key)))

    def full_sequences(self, length: int, key: str, why: str | None = None) -> None:
        """Record as an assumption that all sequences have a length, in tokens; by default as the option cuts them."""
        why = why or f"as {key.rpartition('.')[2]} cuts them; shorter ones take less"
        self.assumed.append(Assumed("sequences", f"{length:,} tokens each", why, self.values.place(key)))

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
        return gpus_per_replica(Namespace(self.megatron(), flags(self.version())))

    @property
    def ranks(self) -> int:
        """Return the ranks that share a micro-batch of workers that do not take Megatron-LM's options."""
        return 1

    @property
    def replicas(self) -> int:
        return max(1, self.trained_gpus // self.sharing)

    def of_megatron(
        self,
        model: Described,
        microbatches: int,
        length: int,
        micro: int,
        adapter: str,
        program: str | None = None,
        options: Sequence[Setting] = (),
    ) -> Run:
        """Return the run by Megatron-Core's workers, of `microbatches` per update over all replicas. Raises InputError.

        Its options know no adapter: the model is read without it, then gets it. --mtp-num-layers, if given, replaces
        the model's number of MTP layers.

        length: tokens per sequence; micro: sequences per micro-batch. adapter: the key that problems about adapters
        name; program: what adds the adapters, such as ms-swift; None for Megatron-Bridge. options: of the workers; by
        default `megatron`'s.
        """
        own = ["--micro-batch-size", str(micro), "--global-batch-size", str(microbatches * micro)]
        own += ["--seq-length", str(length)]
        words = (*(options or self.megatron()), *settings(own, self.reading.file))
        names = Namespace(words, flags(self.version()))
        # An option says how many layers predict further tokens, also of a published model whose Transformers class has
        # none (Qwen3.5, Qwen3-Next); without it config.json does.
        update: dict[str, object] = {"adapter": None}
        if names.given("mtp_num_layers"):
            update["num_nextn_predict_layers"] = names.whole("mtp_num_layers", 0)
        plain = replace(self.supplied, model=model.model.model_copy(update=update))
        run = megatron.run(names, self.trained_gpus, self.known_cluster, plain)
        if refused := list(refusals(model.model, program)):
            raise InputError([self.problem(adapter, reason) for reason in refused])
        whole = run.described.model.model_copy(update={"adapter": model.model.adapter})
        described = replace(run.described, model=whole, assumed=(*model.assumed, *run.described.assumed))
        return replace(run, described=described, program=program)

    def run(self) -> Run:
        """Return the trained model's run with its step or update, and all assumptions.

        Raises InputError with all problems.
        """
        made = self.made()
        malformed = any(problem.what == WRONG for problem in self.values.problems)
        if made is None or self.problems or malformed:
            raise InputError(list(dict.fromkeys([*self.problems, *self.values.problems])))
        return replace(made, assumed=(*made.assumed, *self.assumed))

    def of_json(self, config: dict[str, Any], words: Sequence[str], model: Described, gpus: int, length: int) -> Run:
        """Return the model's run by a DeepSpeed JSON (`config`) that the program builds. Raises InputError.

        words: the program's options as arguments of Transformers' Trainer, in place of the script's; its launcher
        stays. length: tokens per sequence.
        """
        stated = settings(words, self.reading.file)
        own = replace(self.reading, deepspeed=deepspeed.built_json(config), settings=stated, possible=())
        supplied = replace(self.supplied, model=model.model, gpus=gpus, seq_length=length)
        made = deepspeed.run(own, self.known_cluster, supplied)
        return replace(made, described=replace(model, model=made.described.model))

    def made(self) -> Run | None:
        """Return the trained model's run with its step or update, and with any critic's run; None if it cannot be made.

        What keeps it from being made is then in `problems` or those of `values`; raises InputError for problems of the
        trained model.
        """
        raise NotImplementedError

    @property
    def known_cluster(self) -> ClusterDescriptor:
        """Return the cluster; to be used only where a run is asked for, as it is asserted not to be None."""
        assert self.cluster is not None, "is there where a run is asked for"
        return self.cluster

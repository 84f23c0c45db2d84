"""A configuration as its framework reads it: Megatron-LM's options, or DeepSpeed's JSON with a script's arguments."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from symconfig.descriptor.architectures.keys import words
from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, slime, tuners, verl
from symconfig.existing.launch.reading import Reading, Setting, settings
from symconfig.existing.recover import deepspeed, megatron
from symconfig.existing.recover.arguments import Arguments, accelerate_settings
from symconfig.existing.recover.deepspeed_model import described
from symconfig.existing.recover.namespace import Namespace, version_of
from symconfig.existing.recover.rl.nemo_rl import Reader as NemoReader
from symconfig.existing.recover.rl.openrlhf import Reader as OpenRlhfReader
from symconfig.existing.recover.rl.script import EXPERTS, Script
from symconfig.existing.recover.rl.slime import Reader as SlimeReader
from symconfig.existing.recover.rl.tuners import Reader as TunerReader
from symconfig.existing.recover.rl.verl import Reader as VerlReader
from symconfig.existing.recover.run import Assumed, Run, Supplied
from symconfig.existing.rules import deepspeed as deepspeed_rules
from symconfig.existing.rules import megatron as megatron_rules
from symconfig.existing.rules import rl as rl_rules
from symconfig.existing.rules.deepspeed import DeepSpeedFacts
from symconfig.existing.rules.facts import MegatronFacts, meant
from symconfig.existing.rules.rule import Finding, findings
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED_RELEASE
from symconfig.frameworks.known import BACKENDS
from symconfig.frameworks.megatron import mindspeed
from symconfig.frameworks.megatron.flags import first_with, flags, resolve

# What a recipe decides, and changes memory or time: any of the destinations says it. The model may be named instead.
_MODEL = ("num_layers", "hidden_size", "num_attention_heads")
_OF_A_RECIPE = (
    *("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "micro_batch_size"),
    *("global_batch_size", "seq_length", "bf16 fp16", "use_distributed_optimizer", "overlap_grad_reduce"),
    *("sequence_parallel", "recompute_granularity"),
)
# Options by which a program that is not called so is Megatron-LM.
_DISTINCTIVE = words(
    """
    --micro-batch-size --tensor-model-parallel-size --pipeline-model-parallel-size --use-mcore-models
    --encoder-num-layers --train-iters --use-distributed-optimizer
    """
)
UNKNOWN = "unknown"  # the backend of a trainer that is not known
# What reads each trainer's scripts, by what recognises them, the first that does.
_READERS: tuple[tuple[Callable[[Reading], bool], Callable[[Reading, Supplied], Script]], ...] = (
    (lambda reading: reading.format == verl.FORMAT, VerlReader),
    (slime.applies, SlimeReader),
    (openrlhf.applies, OpenRlhfReader),
    (lambda reading: reading.format == nemo_rl.FORMAT, NemoReader),
    (lambda reading: tuners.program(reading) is not None, TunerReader),
)


class Configuration:
    """A configuration as its framework reads it.

    label: the framework's name. version: the release by which it is read; version_given: the user stated it;
    version_guessed: it was inferred from the options. gpus: all GPUs; None if not known. `findings(cluster)` returns a
    finding for each rule that is broken (without a cluster, rules that need one find nothing); `run(cluster)` returns
    the run that it describes, or raises InputError for what the planner does not support.
    """

    backend: str
    label: str
    version: str
    version_given = False
    version_guessed = False

    def __init__(self, reading: Reading, supplied: Supplied) -> None:
        self.reading, self.supplied = reading, supplied
        self.gpus = supplied.gpus or reading.world.gpus

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        raise NotImplementedError

    def run(self, cluster: ClusterDescriptor) -> Run:
        raise NotImplementedError

    def findings_in_json(self) -> list[Finding]:
        """Return the findings in a DeepSpeed JSON, with those about the model where it is known; [] without a JSON."""
        if self.reading.deepspeed is None:
            return []
        model = described(self.reading, Arguments(self.reading.options), self.supplied, [])
        facts = DeepSpeedFacts.of_reading(self.reading, self.gpus, model.model if model is not None else None)
        return findings(deepspeed_rules.RULES, facts)


def configuration_of(reading: Reading, supplied: Supplied) -> Configuration:
    """Return the reading as the configuration of its framework: a trainer's, Megatron-LM's or DeepSpeed's.

    Scripts that a reader of `_READERS` recognises come first, then what has --num-layers, a recipe, or mostly options
    of Megatron-LM; what nothing identifies is a DeepSpeedConfiguration of an unknown backend. Raises InputError.
    """
    if (reader := next((reader for applies, reader in _READERS if applies(reading)), None)) is not None:
        return RlConfiguration(reading, supplied, reader(reading, supplied))
    if any(setting.name == "--num-layers" for setting in reading.settings):
        return MegatronConfiguration(reading, supplied)
    known = sum(first_with(setting.name) is not None for setting in reading.settings)
    by_deepspeed = reading.deepspeed is not None or accelerate_settings(reading).config is not None
    alike = 2 * known >= len(reading.settings) and _is_megatron(reading)
    if not by_deepspeed and (reading.recipe is not None or alike):
        return MegatronConfiguration(reading, supplied)
    if not by_deepspeed and tuners.of_trainer(reading) is not None and not _names_deepspeed(reading):
        return RlConfiguration(reading, supplied, TunerReader(reading, supplied))
    return DeepSpeedConfiguration(reading, supplied)


def _is_megatron(reading: Reading) -> bool:
    """Return whether options that other trainers share are Megatron-LM's: "pretrain" in the program's name, or an
    option of `_DISTINCTIVE`; True also for what is no bash script or has no program.
    """
    if reading.program is None or reading.format != "bash" or "pretrain" in reading.program.text:
        return True
    return any(setting.name in _DISTINCTIVE for setting in reading.settings)


def _names_deepspeed(reading: Reading) -> bool:
    """Return whether an option that begins with "deepspeed" is given, whose JSON may not have been readable."""
    return any(each.key.startswith("deepspeed") for each in reading.options)


class MegatronConfiguration(Configuration):
    """Options of Megatron-LM on a command line, or as overrides of a recipe.

    parsed: Megatron-LM's own parser reads them, not a recipe or another trainer. complete: an option that is not given
    has its default; not so for overrides, where a recipe may set it. dealt: Megatron-Core distributes the layers over
    the stages by these options alone. apart: GPUs that do not train.
    """

    backend = "megatron"
    label = BACKENDS["megatron"].label
    dealt = False
    apart = 0
    mindspeed = False  # whether its options are those of MindSpeed, too

    def __init__(self, reading: Reading, supplied: Supplied) -> None:
        super().__init__(reading, supplied)
        self.version_given = supplied.megatron_version is not None
        self.version_guessed = not self.version_given
        self.parsed = reading.format == "bash"
        self.complete = reading.complete and reading.format not in ("overrides", verl.FORMAT)
        # What names a recipe is no option of Megatron-LM.
        stated = [item for item in reading.settings if reading.recipe is None or reading.recipe not in item.values]
        options = [item.name for item in stated]
        self.mindspeed = self.parsed and mindspeed.uses(options)
        release = mindspeed.MEGATRON if self.mindspeed else version_of(options)
        self.version = resolve(supplied.megatron_version or release)
        self.settings: Sequence[Setting] = [*stated, *reading.possible]
        if self.mindspeed:
            self.label = "MindSpeed-LLM on Megatron-LM"
            algorithm = next((item.text for item in reversed(stated) if item.name == "--context-parallel-algo"), "")
            if (kind := mindspeed.CP_READ.get(algorithm)) is not None:
                self.settings = [*self.settings, *settings(("--cp-comm-type", kind), reading.file)]

    def names(self) -> Namespace:
        """Return the options by destination, with the version's defaults, as a new object without recorded look-ups."""
        table = mindspeed.table(self.version) if self.mindspeed else flags(self.version)
        return Namespace(self.settings, table)

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        """Return a finding for each broken rule about Megatron-LM.

        If another program parses the options, only rules about what they mean (`MEANING`) are checked. Without a
        cluster its facts are unknown, except GPUs per node, which the launcher may give.
        """
        program, own = self.reading.program, self.parsed
        in_shell = self.reading.format == "bash" and program is not None
        facts = MegatronFacts(
            names=self.names(),
            version_given=self.version_given,
            world_size=None if self.gpus is None else max(1, self.gpus - self.apart),
            gpus_per_node=cluster.gpus_per_node if cluster is not None else self.reading.world.gpus_per_node,
            joined=cluster.joined_gpus if cluster is not None else None,
            architecture=cluster.gpu.architecture if cluster is not None else None,
            environment=self.reading.environment if in_shell else None,
            program=program.text if program is not None else None,
            complete=self.complete,
            environment_known=self.reading.environment_known and self.reading.format != "overrides",
            fork=not own,
            dealt=self.dealt,
        )
        return megatron_rules.findings(facts, megatron_rules.RULES if own else megatron_rules.MEANING)

    def run(self, cluster: ClusterDescriptor) -> Run:
        """Return the run; what a recipe decides is assumed to be Megatron-LM's default.

        Raises InputError if options or the recipe leave the run unknown, or if it is invalid. The GPUs must be known.
        """
        assert self.gpus is not None, "is asked for where the GPUs are known"
        names = self.names()
        if unsaid := list(self._undetermined(names)):
            raise InputError(unsaid)
        if (recipe := self.reading.recipe) is not None:
            names = Namespace((*settings(EXPERTS, self.reading.file), *self.settings), names.table)
        run = megatron.run(names, self.gpus, cluster, self.supplied)
        if recipe is not None:
            value, why = "Megatron-LM's defaults and grouped experts", "recipes are not read"
            assumed = Assumed("where the recipe decides,", value, why, recipe.place)
            run = replace(run, assumed=(assumed, *run.assumed))
        return megatron.with_masks(run, names) if self.parsed else run

    def _undetermined(self, names: Namespace) -> Iterator[Problem]:
        """Yield why the run is not known: misspelt options, or a recipe that decides the model or values that matter.

        If an unknown option resembles none of the release, all are taken for a fork's, and give no problem.
        """
        meanings = [meant(setting.name, self.version) for setting in names.unknown if self.parsed]
        if all(meanings):  # else they are a fork's, and the run says what it is predicted without
            for setting, hint in zip(names.unknown, meanings, strict=False):
                yield setting.problem("is no option: what it was meant to say is not known", hint=hint)
        if self.reading.recipe is None:
            return
        open_ = [dests.replace(" ", " or ") for dests in _OF_A_RECIPE if not any(map(names.given, dests.split()))]
        if self.supplied.model is None and not all(map(names.given, _MODEL)):
            yield self._of_recipe("the model", "--model M")
        if open_:
            yield self._of_recipe(", ".join(open_), "overrides that say them")

    def _of_recipe(self, what: str, hint: str) -> Problem:
        word = self.reading.recipe
        assert word is not None, "is asked for of a recipe"
        what = f"decides what its overrides leave open, and symconfig does not read it: {what}"
        return word.place.problem(what, field=f"the recipe {word.text}", hint=hint)


class DeepSpeedConfiguration(Configuration):
    """A DeepSpeed JSON with the arguments of the program that loads it; also any program that nothing identifies."""

    def __init__(self, reading: Reading, supplied: Supplied) -> None:
        super().__init__(reading, supplied)
        known = reading.deepspeed is not None or _names_deepspeed(reading) or accelerate_settings(reading).config
        self.backend = "deepspeed" if known else UNKNOWN
        self.label = (
            BACKENDS["deepspeed"].label if known else "a trainer that is not known: nothing is concluded from it"
        )
        self.version = DEEPSPEED_RELEASE if known else ""

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        return self.findings_in_json()

    def run(self, cluster: ClusterDescriptor) -> Run:
        if self.backend == UNKNOWN:
            start = self.reading.start
            raise InputError(start.problem("this trainer is not known", hint="symconfig list targets"))
        return deepspeed.run(self.reading, cluster, self.supplied)


class RlConfiguration(MegatronConfiguration):
    """A script of an RL or fine-tuning trainer: options of its workers, and its step."""

    def __init__(self, reading: Reading, supplied: Supplied, reader: Script) -> None:
        Configuration.__init__(self, reading, supplied)
        self.reader, self.version_given = reader, supplied.megatron_version is not None
        self.version = reader.version()
        self.settings, self.parsed, self.apart = reader.megatron(), False, reader.apart
        # Of slime alone Megatron-LM's options describe all of the workers, unless the model's are in a file not read.
        self.complete = reading.complete and slime.applies(reading) and not slime.model_hidden(reading)
        self.dealt = bool(self.settings) and tuners.program(reading) is not None
        self.label = f"{reader.trainer.name} with {reader.workers.name} workers"
        if reader.workers.options:
            self.label += f" of {BACKENDS['megatron'].label}"
        else:
            self.backend, self.version, self.version_given = reader.workers.name, reader.trainer.release, True
        self.version_guessed = not self.version_given

    def names(self) -> Namespace:
        """Return the workers' Megatron-LM options; for a tuner's program with the model's number of layers."""
        names = super().names()
        if not self.dealt or names.given("num_layers"):
            return names
        model = described(self.reading, Arguments(self.reader.values.settings), self.supplied, [])
        named = ("--num-layers", str(model.model.num_hidden_layers)) if model is not None else ()
        return Namespace((*self.settings, *settings(named, self.reading.file)), names.table)

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        broken = super().findings(cluster) if self.settings else []
        own = [self._respelled(finding) for finding in broken if rl_rules.holds(finding)]
        own += self.findings_in_json()
        return [*own, *findings(rl_rules.RULES, replace(self.reader, gpus=self.gpus or 0))]

    def _respelled(self, finding: Finding) -> Finding:
        """Return the finding with `--options` in its field and hint spelled as the trainer's keys."""
        problem, trainer = finding.problem, self.reader.trainer

        def spelled(text: str | None) -> str | None:
            return text and re.sub(r"--([a-z][\w-]+)", lambda m: trainer.spelled(m[1].replace("-", "_")), text)

        return replace(finding, problem=replace(problem, field=spelled(problem.field), hint=spelled(problem.hint)))

    def run(self, cluster: ClusterDescriptor) -> Run:
        assert self.gpus is not None, "is asked for where the GPUs are known"
        return replace(self.reader, gpus=self.gpus, cluster=cluster).run()

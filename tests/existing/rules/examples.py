"""A rule's example as a whole configuration: what its few options stand in, on what GPUs."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import replace

from symconfig.descriptor.load import load_model
from symconfig.existing.launch.reading import Reading, Setting, Word, settings
from symconfig.existing.launch.text import Place, Text
from symconfig.existing.launch.trees import parse_json
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules.deepspeed import DeepSpeedFacts
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.rule import BASE, GPUS_PER_NODE, Rule
from symconfig.frameworks.megatron.flags import flags, versions

FILE = "launch.sh"
PROGRAM = "pretrain_gpt.py"
ARCHITECTURE = "hopper"
INSTEAD = {"--bf16": "--fp16"}
JSON = "ds.json"
# Of DeepSpeed's rules, those that compare with a model.
MODELS = {"deepspeed-autotp-heads": "llama2-70b", "deepspeed-ulysses-heads": "llama2-70b"}
# Rules that are about a launch of which less is known.
VERSION_OPEN = ("option-of-a-fork", "options-of-several-versions")


def words(rule: Rule[MegatronFacts]) -> list[str]:
    """Return the example's options, behind those of the base that it does not say itself."""
    own = shlex.split(rule.example)
    if {"--hidden-size", "--num-layers"} <= set(own):
        return own
    named = {setting.name for setting in settings(own, FILE)}
    kept = (
        setting
        for setting in settings(shlex.split(BASE), FILE)
        if setting.name not in named and INSTEAD.get(setting.name) not in named
    )
    return [word for each in kept for word in (each.name, *(value.text for value in each.values))] + own


def version(rule: Rule[MegatronFacts]) -> str:
    """Return the newest release that the rule holds for; main, which is none yet, if it holds for no other."""
    released = [name for name in versions() if name.startswith("core_v")]
    return rule.until or (rule.since if rule.since == "main" else released[-1])


def megatron_facts(rule: Rule[MegatronFacts]) -> MegatronFacts:
    """Return what is asked of the example."""
    given = settings(words(rule), FILE)
    place = given[0].place
    environment = rule.environment
    if environment is None:
        environment = {"CUDA_DEVICE_MAX_CONNECTIONS": "1"} if _queued(given) else {}
    return MegatronFacts(
        Namespace(given, flags(version(rule))),
        version_given=rule.name not in VERSION_OPEN,
        world_size=rule.gpus,
        gpus_per_node=GPUS_PER_NODE,
        joined=rule.joined or GPUS_PER_NODE,
        architecture=rule.architecture or ARCHITECTURE,
        environment={name: Word.of(value, place) for name, value in environment.items()},
        program=PROGRAM,
    )


def _queued(given: Sequence[Setting]) -> bool:
    """Tell whether there is tensor or context parallelism: Hopper wants one hardware queue."""
    names = {setting.name for setting in given}
    return bool(names & {"--tensor-model-parallel-size", "--context-parallel-size"})


def deepspeed_facts(rule: Rule[DeepSpeedFacts]) -> DeepSpeedFacts:
    """Return the facts of an example: a JSON, and before it the command in a line of its own where the rule is about
    that.
    """
    place = Place(FILE, 0, 0, 1, 1)
    command, _, text = rule.example.rpartition("\n")
    arguments = shlex.split(command)
    start = next((index + 1 for index, item in enumerate(arguments) if item.endswith(".py")), len(arguments))
    given = settings(arguments[start:], FILE)
    tree = parse_json(Text(JSON, text.encode()))
    model = load_model(MODELS[rule.name]) if rule.name in MODELS else None
    launcher = tuple(Word.of(item, place) for item in arguments[:start])
    reading = Reading("bash", (tree.text,), given, None, launcher, deepspeed=tree)
    facts = DeepSpeedFacts.of_reading(reading, rule.gpus, model)
    return replace(facts, environment=None if rule.environment is None else {})

"""A configuration as its framework reads it: Megatron-LM's options, or DeepSpeed's JSON with a script's arguments."""

from __future__ import annotations

from typing import Protocol

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.launch.reading import Reading
from symconfig.recover import deepspeed, megatron
from symconfig.recover.asked import Asked
from symconfig.recover.namespace import Namespace, version_of
from symconfig.recover.run import Run
from symconfig.render.flags import flags, resolve
from symconfig.rules import deepspeed as deepspeed_rules
from symconfig.rules import megatron as megatron_rules
from symconfig.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.rules.facts import MegatronFacts
from symconfig.rules.rule import Finding
from symconfig.targets import DEEPSPEED_RELEASE


class Side(Protocol):
    """version: of the framework that it is read as; version_given: because a person said so. gpus: None: not known."""

    @property
    def reading(self) -> Reading: ...
    @property
    def backend(self) -> str: ...
    @property
    def version(self) -> str: ...
    @property
    def version_given(self) -> bool: ...
    @property
    def gpus(self) -> int | None: ...

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        """Every rule that is broken."""
        ...

    def run(self, cluster: ClusterDescriptor) -> Run:
        """In the planner's terms. Raises InputError for what it does not know."""
        ...


def side(reading: Reading, asked: Asked) -> Side:
    """Raises InputError for a Megatron-LM version that is not known."""
    described = any(setting.name == "--num-layers" for setting in reading.settings)
    if reading.deepspeed is not None and not described:
        return DeepSpeedSide(reading, asked)
    return MegatronSide(reading, asked)


class MegatronSide:
    """Options of Megatron-LM, beside a DeepSpeed JSON where Megatron-DeepSpeed is started."""

    backend = "megatron"

    def __init__(self, reading: Reading, asked: Asked) -> None:
        self.reading, self.asked = reading, asked
        self.version_given = asked.megatron_version is not None
        spelled = [setting.name for setting in reading.settings]
        self.version = resolve(asked.megatron_version or version_of(spelled))
        self.names = Namespace(reading.settings, flags(self.version))
        self.gpus = asked.gpus or reading.world.gpus

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        program = self.reading.program
        return megatron_rules.findings(MegatronFacts(
            self.names,
            self.version_given,
            self.gpus,
            cluster.gpus_per_node if cluster is not None else self.reading.world.gpus_per_node,
            cluster.gpu.architecture if cluster is not None else None,
            self.reading.environment if self.reading.format in ("bash", "model args yaml") and program else None,
            program.text if program is not None else None,
            self.reading.complete,
        ))

    def run(self, cluster: ClusterDescriptor) -> Run:
        assert self.gpus is not None, "is asked for where the GPUs are known"
        return megatron.run(self.names, self.gpus, cluster, self.asked)


class DeepSpeedSide:
    """A DeepSpeed JSON with the arguments of the program that loads it."""

    backend = "deepspeed"
    version, version_given = DEEPSPEED_RELEASE, False

    def __init__(self, reading: Reading, asked: Asked) -> None:
        self.reading, self.asked = reading, asked
        self.gpus = asked.gpus or reading.world.gpus

    def findings(self, cluster: ClusterDescriptor | None) -> list[Finding]:
        return deepspeed_rules.findings(DeepSpeedFacts.of_reading(self.reading, self.gpus, self.asked.model))

    def run(self, cluster: ClusterDescriptor) -> Run:
        return deepspeed.run(self.reading, cluster, self.asked)

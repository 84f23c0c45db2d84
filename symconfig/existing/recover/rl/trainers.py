"""Trainers of reinforcement learning, and the workers that train in them: the facts by which their readers differ."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from symconfig.descriptor.job import Backend
from symconfig.existing.launch.dialects import nemo_rl, openrlhf, verl
from symconfig.formats import tuners
from symconfig.formats.keys import Keys
from symconfig.formats.openrlhf import KEYS as OPENRLHF_KEYS
from symconfig.formats.slime import KEYS as SLIME_KEYS
from symconfig.formats.verl import TUNING


@dataclass(frozen=True, slots=True)
class Workers:
    """What trains a model. options: it takes Megatron-LM's. predicted: False for those of which a name alone is known.
    planned, target: the backend and the target of a better layout; None: the trainer's own."""

    name: str
    options: bool = False
    predicted: bool = True
    planned: Backend = "megatron"
    target: str | None = None


MEGATRON = Workers("megatron", options=True)
FSDP = Workers("fsdp", planned="fsdp", target="verl-fsdp")
DEEPSPEED = Workers("deepspeed", planned="deepspeed")
SHARDS = Workers("fsdp", planned="deepspeed")  # of programs whose plans are for DeepSpeed
DTENSOR = Workers("dtensor", planned="fsdp")
REPLICAS = replace(SHARDS, name="ddp")
_OF_VERL = {each.name: each for each in (MEGATRON, FSDP)}


def of_verl(name: str) -> Workers:
    """Return verl's workers of a name."""
    return _OF_VERL.get(name, Workers(name, predicted=False))


@dataclass(frozen=True, slots=True)
class Trainer:
    """A trainer. release: whose defaults hold. longest: its options of the longest prompt and response. dashes: how an
    option's name is spelled on the command line, by what stands before it and between its words. offload: what brings a
    reference that is not read to the host, as a person writes it. whole: its option of the longest of both together.
    keys: all that it is told, by name."""

    name: str
    release: str
    longest: tuple[str, str]
    dashes: tuple[str, str] = ("--", "_")
    offload: str | None = None
    whole: str | None = None
    keys: Keys = field(default_factory=dict, compare=False)

    def spelled(self, key: str) -> str:
        """Return an option as a person writes it."""
        return self.dashes[0] + key.replace("_", self.dashes[1])


VERL = Trainer(
    "verl",
    verl.RELEASE,
    ("rl.prompt_length.max", "rl.response_length.max"),
    ("", "_"),
    "ref.megatron.param_offload=True",
)
VERL_TUNING = Trainer("verl's fine-tuning", verl.RELEASE, ("longest", "longest"), ("", "_"), keys=TUNING)
SLIME = Trainer("slime", "0.3.1", ("rl.prompt_length.max", "rl.response_length.max"), ("--", "-"), keys=SLIME_KEYS)
OPENRLHF = Trainer(
    "openrlhf",
    openrlhf.RELEASE,
    ("prompt_max_len", "rl.response_length.max"),
    offload="--ref.offload",
    whole="rl.longest",
    keys=OPENRLHF_KEYS,
)
TUNERS = {
    each.name: Trainer(each.name, each.release, each.longest, each.dashes)
    for each in (*tuners.TUNERS, tuners.TRANSFORMERS)
}
TRL, LLAMAFACTORY, SWIFT = (TUNERS[each.name] for each in (tuners.TRL, tuners.LLAMAFACTORY, tuners.SWIFT))
NEMO = Trainer(nemo_rl.FORMAT, "0.7.0", ("rl.prompt_length.max", "rl.response_length.max"), ("", "_"))

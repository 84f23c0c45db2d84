"""What the rules of a DeepSpeed JSON are asked about, and how they read it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from symconfig.descriptor.document import KeyPath
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import Problem
from symconfig.existing.launch.reading import Reading, Tree, Word
from symconfig.existing.launch.text import Text
from symconfig.existing.recover.arguments import Arguments
from symconfig.existing.recover.deepspeed_json import at, filled, uses_trainer
from symconfig.formats.deepspeed import stage_of
from symconfig.frameworks.deepspeed.keys import AUTO, ZERO

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeepSpeedFacts:
    """What rules may ask of a DeepSpeed JSON and its launch.

    tree: the JSON with its places. trainer: Transformers' Trainer loads it. config: its data, with "auto" filled in if
    so. arguments: of the training program. gpus, model: None if not known. environment: variables that the script sets;
    None if not known. launcher: the words before the program.
    """

    tree: Tree
    trainer: bool
    arguments: Arguments = field(default_factory=Arguments)
    gpus: int | None = None
    model: ModelDescriptor | None = None
    environment: Mapping[str, Word] | None = None
    launcher: tuple[str, ...] = ()
    config: Any = field(init=False)

    def __post_init__(self) -> None:
        hidden = self.model.hidden_size if self.model else None
        config = filled(self.tree.data, self.arguments, hidden) if self.trainer else self.tree.data
        object.__setattr__(self, "config", config)

    @classmethod
    def of_reading(cls, reading: Reading, gpus: int | None, model: ModelDescriptor | None) -> Self:
        """Return the facts of a configuration that was read. Raises ValueError without a DeepSpeed JSON."""
        if reading.deepspeed is None:
            raise ValueError("there is no DeepSpeed JSON")
        arguments = Arguments(reading.options)
        return cls(
            tree=reading.deepspeed,
            trainer=uses_trainer(arguments),
            arguments=arguments,
            gpus=gpus,
            model=model,
            environment=reading.environment if reading.environment_known and not reading.json_alone else None,
            launcher=tuple(word.text for word in reading.launcher),
        )

    @classmethod
    def of_data(cls, config: Any, file: str, trainer: bool, gpus: int | None = None) -> Self:
        """Return the facts of plain data alone. trainer: Transformers' Trainer loads it. gpus: None if not known."""
        return cls(tree=Tree(Text(file, b""), config, {}, "json"), trainer=trainer, gpus=gpus)

    def get(self, *path: str) -> Any:
        """Return the value at a path, with "auto" filled in; None where there is none."""
        return at(self.config, path)

    def section(self, *path: str) -> Json:
        """Return the object at a path; {} where there is none or another value."""
        value = self.get(*path)
        return value if isinstance(value, dict) else {}

    def number(self, *path: str) -> int | float | None:
        value = self.get(*path)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def whole(self, *path: str, otherwise: int = 0) -> int:
        value = self.number(*path)
        return value if isinstance(value, int) else otherwise

    @property
    def stage(self) -> int:
        """Return the ZeRO stage; 0 if none, or none that DeepSpeed has, is given."""
        return stage_of(self.config)

    @property
    def data_ranks(self) -> int | None:
        """Return the GPUs over the Ulysses degree (AutoTP ranks count), None if unknown or not divisible."""
        shared = self.sequence_parallel
        return None if self.gpus is None or self.gpus % shared else self.gpus // shared

    @property
    def precision(self) -> str:
        """Return "bf16" (also by bfloat16), "fp16", "fp32" if none is on, or "unknown" for an "auto"."""
        if any(self.get(name, "enabled") is True for name in ("bf16", "bfloat16")):
            return "bf16"
        if self.get("fp16", "enabled") is True:
            return "fp16"
        return "unknown" if AUTO in (self.get(name, "enabled") for name in ("bf16", "bfloat16", "fp16")) else "fp32"

    @property
    def tensor_parallel(self) -> int:
        return max(self.whole("tensor_parallel", "autotp_size"), 1)

    @property
    def sequence_parallel(self) -> int:
        return max(self.whole("sequence_parallel_size"), 1)

    @property
    def expert_parallel(self) -> int:
        return max(self.whole("expert_parallel", "autoep_size"), 1)

    @property
    def may_share_data(self) -> bool:
        """Return whether ranks may have the same parameters, which ZeRO shards; True if the GPUs are not known."""
        return self.gpus is None or self.gpus > self.tensor_parallel

    def offloads(self, section: str) -> bool:
        """Return whether offload_optimizer or offload_param (`section`) has the device "cpu" or "nvme"."""
        return self.get(ZERO, section, "device") in ("cpu", "nvme")

    def problem(self, path: KeyPath, what: str, *, of_key: bool = False, **words: str | None) -> Problem:
        """Return a Problem about this path of the JSON, where it stands. words: its got, need and hint."""
        return self.tree.problem(path, what, of_key=of_key, **words)

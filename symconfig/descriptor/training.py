"""The optimizer that a job asks for, with its settings; and the section `training` of a job: what the planner passes on
and never decides.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from posixpath import normpath
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, field_validator, model_validator

from symconfig.descriptor.strict import Count, PositiveInt, Rate, Strict

OptimizerName = Literal["adam", "adam8bit", "adafactor", "muon", "sgd"]
KNOWN_OPTIMIZERS: dict[str, str] = {
    "adam": "AdamW, its moments in fp32 or narrower",
    "adam8bit": "AdamW with both moments in 8 bits (bitsandbytes)",
    "adafactor": "Adafactor without a first moment",
    "muon": "Muon for the matrices of layers, AdamW for everything else",
    "sgd": "stochastic gradient descent with momentum",
}
# Fields that belong to some of the optimizers only.
_BELONGS = {
    **dict.fromkeys(("main_params", "exp_avg", "exp_avg_sq"), ("adam",)),
    "momentum": ("muon", "sgd"),
    **dict.fromkeys(("nesterov", "ns_steps", "scale_mode", "extra_scale_factor", "tp_mode"), ("muon",)),
}
Width = Literal["fp32", "fp16", "bf16", "fp8"]


class Optimizer(Strict):
    """The optimizer that steps the weights. Learning rate, Adam's betas and weight decay stand in `training`."""

    name: OptimizerName = "adam"
    main_params: Literal["fp32", "fp16"] = Field(default="fp32", description="of adam: the master weights")
    exp_avg: Width = Field(default="fp32", description="of adam: the first moment as it is kept")
    exp_avg_sq: Width = Field(default="fp32", description="of adam: the second moment as it is kept")
    momentum: Rate | None = Field(default=None, description="of muon and sgd; absent: 0.95 and 0.9")
    nesterov: bool = Field(default=True, description="of muon: a step along gradient and momentum")
    ns_steps: Annotated[int, Field(ge=1, le=99)] = Field(default=5, description="of muon: Newton-Schulz iterations")
    scale_mode: Literal["spectral", "unit_rms_norm", "shape_scaling"] = Field(
        default="spectral", description="of muon: the update's scale by the matrix's sides"
    )
    extra_scale_factor: Annotated[float, Field(gt=0)] = Field(default=1.0, description="of muon: times that scale")
    tp_mode: Literal["blockwise", "duplicated", "distributed"] = Field(
        default="blockwise",
        description="of muon: each tensor-parallel rank iterates on its part, on the whole, or on its share of it",
    )

    @model_validator(mode="before")
    @classmethod
    def _named(cls, value: Any) -> Any:
        """Return the section's fields; a name alone becomes {"name": name}."""
        return {"name": value} if isinstance(value, str) else value

    def contradictions(self) -> Iterator[str]:
        """Yield a sentence for each setting of other optimizers that has a value other than the default."""
        for field, owners in _BELONGS.items():
            if self.name not in owners and getattr(self, field) != Optimizer.model_fields[field].default:
                yield f"{field} is no setting of {self.name}, but of {' and '.join(owners)}"

    @property
    def usual(self) -> bool:
        """Return whether it is Adam with master weights and both moments in fp32, which every target has."""
        return self.name == "adam" and not self.narrow

    @property
    def narrow(self) -> bool:
        """Return whether master weights or a moment are set to a type narrower than fp32."""
        return (self.main_params, self.exp_avg, self.exp_avg_sq) != ("fp32", "fp32", "fp32")

    @property
    def speed(self) -> float:
        """Return the momentum: as set, else 0.95 for Muon and 0.9 for all others."""
        return {"muon": 0.95}.get(self.name, 0.9) if self.momentum is None else self.momentum


ADAM = Optimizer()


PositiveRate = Annotated[float, Field(gt=0)]
Share = Annotated[float, Field(ge=0)]
_NUMBER = re.compile(r"[.0-9]+")
Line = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$")]


def _several(value: object) -> object:
    """Return one text, or a list, as a tuple; other values unchanged, for pydantic to refuse."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


Prefixes = Annotated[tuple[str, ...], BeforeValidator(_several)]


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


class Training(Strict):
    """The settings of a run that a person gives.

    Fields that may be absent are derived from task and size (`learning_rate`).
    """

    lr: PositiveRate | None = Field(default=None, description="the highest learning rate; absent: by task and size")
    min_lr: Share | None = Field(default=None, description="absent: a tenth of lr in pretraining, else 0")
    lr_decay_style: Literal["constant", "linear", "cosine", "inverse-square-root", "WSD"] = "cosine"
    lr_warmup_iters: Count | None = Field(default=None, description="absent: a share of the decay, by task")
    lr_decay_iters: PositiveInt | None = Field(
        default=None, description="iterations until the lowest rate; absent: train_iters"
    )
    lr_wsd_decay_iters: PositiveInt | None = Field(
        default=None, description="iterations of the decay that ends WSD; absent: a tenth of lr_decay_iters"
    )
    train_iters: PositiveInt = Field(default=1000, description="optimizer steps of the whole run")
    weight_decay: Share | None = Field(default=None, description="absent: by task")
    adam_beta1: Annotated[float, Field(ge=0, lt=1)] = 0.9
    adam_beta2: Annotated[float, Field(ge=0, lt=1)] = 0.95
    adam_eps: Annotated[float, Field(gt=0)] = 1.0e-8
    clip_grad: Annotated[float, Field(ge=0, description="largest norm of the gradient; 0: any")] = 1.0
    seed: Count = 1234
    tokenizer_type: str | None = Field(
        default=None, description="Megatron's name; absent: HuggingFaceTokenizer with real data"
    )
    tokenizer_model: str | None = Field(
        default=None, description="its folder or Hugging Face name; absent: the model's"
    )
    data_path: Prefixes = Field(default=(), description="prefixes or files; with weights: WEIGHT PREFIX in turn")
    split: str = Field(default="949,50,1", description="shares of training, validation and test")
    hf_weights: Annotated[str, Field(min_length=1)] | None = Field(
        default=None,
        description="Hugging Face id or folder to start from; absent: when tuning the model's own, else random",
    )
    save: str | None = Field(default=None, description="folder for checkpoints; absent: most targets write none")
    load: str | None = Field(default=None, description="folder of the checkpoint to start or resume from")
    save_interval: PositiveInt = Field(default=500, description="steps between checkpoints")
    eval_interval: PositiveInt = Field(default=1000, description="steps between evaluations")
    eval_iters: Count = Field(default=0, description="batches of an evaluation; 0: none")
    log_interval: PositiveInt = Field(default=1, description="steps between lines of the log")
    tensorboard_dir: Line | None = Field(default=None, description="folder of TensorBoard's files; absent: none")
    wandb_project: Line | None = Field(default=None, description="project in Weights & Biases; absent: none")
    wandb_name: Line | None = Field(default=None, description="the run's name there; absent: the model's")
    distributed_timeout_minutes: PositiveInt | None = Field(
        default=None, description="how long a collective may wait; absent: the framework's own"
    )
    manual_gc_interval: Count | None = Field(
        default=None, description="steps between garbage collections on all ranks at once; 0: Python's own. Absent: 100"
    )
    derived: tuple[str, ...] = Field(default=(), description="fields that the job left open, as a plan records them")

    @field_validator("*")
    @classmethod
    def _passable(cls, value: Any) -> Any:
        """Return the value unchanged. Raises ValueError for text with a NUL character."""
        if any("\0" in text for text in (value if isinstance(value, tuple) else (value,)) if isinstance(text, str)):
            raise ValueError("it holds a NUL character")
        return value

    @property
    def wsd_decay_iters(self) -> int:
        """Return the iterations of decay after WSD's stable phase; if not given, a tenth of the decay, at least 1."""
        return self.lr_wsd_decay_iters or max(1, self.decay_iters // 10)

    @property
    def decay_iters(self) -> int:
        """Return the iterations until the learning rate is lowest; if not given, all iterations."""
        return self.lr_decay_iters or self.train_iters

    @property
    def blended(self) -> bool:
        """Return whether data_path is a list of weights and prefixes in turn: even, not empty, each first a number.

        As Megatron-LM decides it: core/datasets/utils.py, get_blend_from_list.
        """
        paths = self.data_path
        return bool(paths) and len(paths) % 2 == 0 and all(map(_is_number, paths[::2]))

    @property
    def held_out(self) -> float:
        """Return the share of data that is evaluated on, 0 to 1: the second number of `split` over the sum, 6 digits.

        0.0 for less than two numbers or a sum of 0. Megatron-LM reads it like this
        (core/datasets/blended_megatron_dataset_config.py, parse_and_normalize_split).
        """
        shares = [float(part) for part in _NUMBER.findall(self.split) if _is_number(part)]
        whole = sum(shares, 0.0)
        return round(shares[1] / whole, 6) if len(shares) > 1 and whole else 0.0

    @property
    def loads_its_own(self) -> bool:
        """Return whether `load` and `save` are the same path, so that a run resumes from its own checkpoints."""
        return None not in (self.load, self.save) and normpath(str(self.load)) == normpath(str(self.save))

    @property
    def left_open(self) -> tuple[str, ...]:
        """Return the names of the fields that are not set and still to be derived."""
        return tuple(name for name in DERIVED if getattr(self, name) is None)


class WholeTraining(Training):
    """The settings of a run with nothing left open, as every plan has them."""

    lr: PositiveRate = Field(description="the highest learning rate")
    min_lr: Share = Field(description="the lowest one, at the end of the decay")
    lr_warmup_iters: Count = Field(description="iterations until the highest one")
    weight_decay: Share

    @staticmethod
    def of(training: Training) -> WholeTraining:
        """Return the training as a WholeTraining. Raises AssertionError if fields are still open."""
        if isinstance(training, WholeTraining):
            return training
        assert not training.left_open, f"training was not derived: {', '.join(training.left_open)}"
        return WholeTraining.model_construct(**dict(training))


DERIVED = ("lr", "min_lr", "lr_warmup_iters", "weight_decay")

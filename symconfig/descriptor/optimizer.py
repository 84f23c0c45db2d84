"""The optimizer that a job asks for, with its settings."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from symconfig.descriptor.strict import Rate, Strict, refuse
from symconfig.errors import nearest

Name = Literal["adam", "adam8bit", "adafactor", "muon", "sgd"]
NAMES: dict[str, str] = {
    "adam": "AdamW, its moments in fp32 or narrower",
    "adam8bit": "AdamW with both moments in 8 bits (bitsandbytes)",
    "adafactor": "Adafactor without a first moment",
    "muon": "Muon for the matrices of layers, AdamW for everything else",
    "sgd": "stochastic gradient descent with momentum",
}
# Fields that belong to some of the optimizers only.
_BELONGS = {
    "main_params": ("adam",),
    "exp_avg": ("adam",),
    "exp_avg_sq": ("adam",),
    "momentum": ("muon", "sgd"),
    "nesterov": ("muon",),
    "ns_steps": ("muon",),
    "scale_mode": ("muon",),
    "extra_scale_factor": ("muon",),
    "tp_mode": ("muon",),
}
Width = Literal["fp32", "fp16", "bf16", "fp8"]


class Optimizer(Strict):
    """The optimizer that steps the weights. Learning rate, Adam's betas and weight decay stand in `training`."""

    name: Name = "adam"
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
        """Return the section's fields; a name alone becomes {"name": name}, other types pass, for pydantic to refuse.

        Raises ValueError for an unknown name, with the nearest.
        """
        fields = {"name": value} if isinstance(value, str) else value
        name = fields.get("name") if isinstance(fields, dict) else None
        if isinstance(name, str) and name not in NAMES:
            close = nearest(name, NAMES)
            need = "one of " + ", ".join(NAMES)
            raise ValueError(
                f"{name} is no optimizer that is known, need {need}" + (f" (Try: {close})" if close else "")
            )
        return fields

    @model_validator(mode="after")
    def _belonging(self) -> Optimizer:
        """Return the section. Raises ValueError if settings of other optimizers have a value other than the default."""
        refuse(
            *(
                (
                    getattr(self, field) != Optimizer.model_fields[field].default,
                    f"{field} is no setting of {self.name}, but of {' and '.join(owners)}",
                )
                for field, owners in _BELONGS.items()
                if field in self.model_fields_set and self.name not in owners
            )
        )
        return self

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

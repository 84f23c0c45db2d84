"""DeepSpeed, as the other rooms ask about it."""

from __future__ import annotations

from symconfig.frameworks.backend import Backend, Kind, Medium, Releases
from symconfig.frameworks.deepspeed import adapters
from symconfig.frameworks.deepspeed.behaviour import DEEPSPEED as USUAL
from symconfig.frameworks.deepspeed.releases import DEEPSPEED_RELEASE

DEEPSPEED = Backend(
    name="deepspeed",
    label="DeepSpeed",
    program="DeepSpeed's train.py",
    distribution="deepspeed",
    releases=Releases(pinned=DEEPSPEED_RELEASE),
    told_by=Medium.JSON,
    usual=USUAL,
    low_precisions=(),
    adapters=True,
    refused_adapters=lambda model, target=None: tuple(adapters.refusals(model)),
    fuses=adapters.fuses,
    gradient_buckets=False,
    pads_vocabulary=False,
    generators_by_replica=lambda release: False,
    writes=lambda zero, release: Kind("deepspeed"),
    names_release=True,  # ds_version in every file of states (runtime/engine.py, _save_checkpoint)
)

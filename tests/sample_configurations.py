"""Configurations of which a test names only what it is about."""

from __future__ import annotations

from typing import Any

from symconfig.plans.degrees import Degrees
from symconfig.solve.configuration import Configuration


def degrees(*, tp: int = 1, pp: int = 1, vpp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, dp: int = 1) -> Degrees:
    return Degrees(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp)


def configuration(
    *, tp: int = 1, pp: int = 1, vpp: int = 1, cp: int = 1, ep: int = 1, etp: int = 1, dp: int = 1, **options: Any
) -> Configuration:
    return Configuration(degrees=degrees(tp=tp, pp=pp, vpp=vpp, cp=cp, ep=ep, etp=etp, dp=dp), **options)

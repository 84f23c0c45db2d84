"""All schedules, by name."""

from __future__ import annotations

from collections.abc import Mapping

from symconfig.schedule.dualpipe import DUALPIPE
from symconfig.schedule.gpipe import GPIPE
from symconfig.schedule.interleaved import INTERLEAVED, PAIRED_INTERLEAVED
from symconfig.schedule.one_f_one_b import ONE_F_ONE_B
from symconfig.schedule.schedule import Schedule
from symconfig.schedule.zero_bubble import ZB_H1, ZB_V

SCHEDULES: Mapping[str, Schedule] = {
    schedule.name: schedule
    for schedule in (
        GPIPE,
        ONE_F_ONE_B,
        INTERLEAVED,
        PAIRED_INTERLEAVED,
        ZB_H1,
        ZB_V,
        DUALPIPE,
    )
}

"""The programs' own parsers read adapted files, where `make verify-formats` has made their environments: they say the
plan that was asked for, word by word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import symconfig
from symconfig.api import existing
from symconfig.plans.plan import Plan
from symconfig.render import render
from symconfig.render.files import write
from tests.formats.words import differences
from tests.runs.rl.support import section
from tests.verify_formats import asked, python_of_made, read_format

PAIRS: dict[str, Any] = {"preference": {"pairs": 64}, "sequences": {"mean": 600.0, "max": 2048}}
STEP: dict[str, Any] = {"rl": section(updates=1, response_length={"mean": 300.0, "max": 1024})}
TUNED: dict[str, Any] = {"global_batch_size": 128, "seq_length": 2048, "task": "sft"}
SHARDS = TUNED | {"backend": "fsdp"}
# Jobs, and the choices before and after, by target.
CASES: dict[str, tuple[tuple[dict[str, Any], dict[str, str], dict[str, str]], ...]] = {
    "trl": ((STEP, {"zero": "2"}, {"zero": "3"}), (PAIRS, {"zero": "2"}, {"zero": "3", "recompute": "full"})),
    "llamafactory": ((TUNED, {"zero": "1"}, {"zero": "3"}), (SHARDS, {"recompute": "full"}, {"recompute": "none"})),
    "ms-swift-deepspeed": ((TUNED, {"zero": "1"}, {"zero": "3"}),),
}


@pytest.mark.parametrize("target", CASES)
def test_the_programs_own_parser_reads_the_plan(target: str, tmp_path: Path) -> None:
    form = read_format(target)
    python = python_of_made(form)
    if python is None:
        pytest.skip(f"make verify-formats FORMATS={target} makes its environment")
    folders, plans = {}, dict[str, Plan]()
    for place, (job, before, after) in enumerate(CASES[target]):
        was, plan = (symconfig.plan("qwen3-8b", "h100", 8, target=target, pins=p, **job).plan for p in (before, after))
        name = str(place)
        folders[name], plans[name] = tmp_path / name, plan
        write(render(was, target), folders[name])
        done = existing.adapt(folders[name] / "launch.sh", plan, best="planned")
        assert done.done, done.unplaced
        assert done.changes
        for file, data in done.files.items():
            Path(file).write_bytes(data)
        (folders[name] / "plan.json").write_text(render(plan, target)["plan.json"])
    for name, answer in asked(form, python, folders).items():
        assert answer["accepted"], answer["said"]
        assert not differences(plans[name], answer["values"])
        assert len(answer["values"]) > 20

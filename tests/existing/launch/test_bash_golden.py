"""What this project renders is read back, word for word."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from symconfig.existing.launch.bash.read import read_bash
from symconfig.existing.launch.text import Text
from symconfig.render import render
from tests.sample_plans import sample_plan

GOLDEN = Path(__file__).parents[2] / "render" / "golden" / "deepseek-v3.launch.sh"


def words(text: str, file: str) -> list[str]:
    reading = read_bash(Text(file, text.encode())).reading
    assert reading.complete
    assert reading.unread == ()
    return [word for setting in reading.settings for word in (setting.name, *(v.text for v in setting.values))]


@pytest.mark.parametrize("model", ["deepseek-v3", "llama2-13b", "mixtral-8x7b", "qwen3-30b-a3b"])
def test_a_rendered_script_gives_its_own_arguments(model: str) -> None:
    files = render(sample_plan(model, "h100", version="core_v0.19.0"), "megatron")
    assert words(files["launch.sh"], "launch.sh") == shlex.split(files["megatron_args.txt"])


def test_the_golden_script_says_its_gpus() -> None:
    reading = read_bash(Text("launch.sh", GOLDEN.read_bytes())).reading
    world = reading.world
    assert (world.gpus, world.nodes, world.gpus_per_node) == (2048, 256, 8)
    assert reading.environment["CUDA_DEVICE_MAX_CONNECTIONS"].text == "1"
    assert reading.program is not None
    assert reading.program.text == "./pretrain_gpt.py"

"""Whatever stands in a DeepSpeed JSON and among the arguments, it is read, or refused in sentences."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from symconfig.descriptor.load import load_cluster, load_model
from symconfig.errors import InputError
from symconfig.existing.recover.deepspeed import run
from symconfig.existing.recover.run import Supplied
from symconfig.existing.rules.deepspeed import DeepSpeedFacts, findings
from symconfig.frameworks.deepspeed.keys import schema
from tests.existing.recover.deepspeed_support import reading

A100 = load_cluster("a100-80gb")
ASKED = Supplied(model=load_model("llama2-7b"), seq_length=2048)


def paths(node: dict[str, Any], above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, inner in (node or {}).get("properties", {}).items():
        yield (*above, key)
        yield from paths(inner, (*above, key))


PATHS = sorted(paths(schema()))
VALUES = st.one_of(
    st.sampled_from(["auto", "cpu", "nvme", "none", "", "1e-5", "true", "fp32", "AdamW", "∞", "-1"]),
    st.booleans(),
    st.none(),
    st.integers(-2, 9),
    st.sampled_from([2**70, 5 * 10**8, 10**30]),
    st.floats(-1e9, 1e9),
    st.just([1, "x"]),
    st.builds(list),
    st.builds(dict),
    st.builds(dict, enabled=st.just(True), device=st.just("cpu"), stage=st.just(3)),
)
ARGUMENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "per_device_train_batch_size",
                "bf16",
                "fp16",
                "lora-r",
                "lora_target",
                "use_lora",
                "load_in_4bit",
                "zero-stage",
                "model",
                "model_max_length",
                "gradient_checkpointing",
                "deepspeed_config",
                "recompute-layers",
                "learning_rate",
                "attn_implementation",
                "quantization_bit",
                "num-experts",
            ]
        ),
        st.sampled_from(["", "1", "0", "-1", "True", "no", "x", "all", "q_proj", "9" * 30, "1e-5", "eager"]),
    ),
    max_size=5,
)


@st.composite
def configs(draw: st.DrawFn) -> dict[str, Any]:
    config: dict[str, Any] = {"train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": True}}
    for path in draw(st.lists(st.sampled_from(PATHS), max_size=6)):
        section = config
        for key in path[:-1]:
            inner = section.get(key)
            if not isinstance(inner, dict):
                inner = section[key] = {}
            section = inner
        section[path[-1]] = draw(VALUES)
    return config


@settings(max_examples=300, deadline=None)
@given(configs(), ARGUMENTS, st.sampled_from([None, 1, 6, 8, 16]))
def test_anything_is_read_or_refused_in_sentences(
    config: dict[str, Any], words: list[tuple[str, str]], gpus: int | None
) -> None:
    found = reading(json.dumps(config), [f"--{name}={value}" for name, value in words], gpus)
    for item in findings(DeepSpeedFacts.of_reading(found, gpus, ASKED.model)):
        assert item.problem.line == 1
        assert str(item.problem)
    try:
        made = run(found, A100, ASKED)
    except InputError:
        return
    c = made.configuration
    assert c.world_size == (gpus or c.world_size)
    assert c.global_batch % (c.micro * c.dp) == 0
    assert 0 <= c.optimizer_offload <= 1

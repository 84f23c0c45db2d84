"""The collectives that Megatron-Bridge's adapters really call, forward and backward, over a tensor-parallel group.

tests/graph/test_parallel_adapters.py holds what is derived of adapters to the same table. `base`: the frozen layer has
gathered the column-parallel adapter's input already, as Transformer Engine does.
"""

from __future__ import annotations

import importlib
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

TP, TOKENS, HIDDEN, RANK = 4, 64, 32, 8
_CALLS = {
    "all_reduce": "all-reduce", "all_gather_into_tensor": "all-gather", "_all_gather_base": "all-gather",
    "reduce_scatter_tensor": "reduce-scatter", "_reduce_scatter_base": "reduce-scatter",
}  # fmt: skip
# (beside, sequence parallel) -> (phase, kind, elements of the whole tensor) -> how often.
EXPECTED: dict[tuple[str, bool], dict[tuple[str, str, int], int]] = {
    ("columns", True): {("forward", "all-gather", TOKENS * RANK): 1, ("backward", "all-reduce", TOKENS * RANK): 1},
    ("columns", False): {("forward", "all-gather", TOKENS * RANK): 1, ("backward", "all-reduce", TOKENS * RANK): 1,
                         ("backward", "all-reduce", TOKENS * HIDDEN): 1},
    ("rows", True): {("forward", "all-reduce", TOKENS * RANK): 1, ("forward", "all-gather", TOKENS * HIDDEN): 1,
                     ("backward", "all-gather", TOKENS * HIDDEN): 1, ("backward", "all-reduce", TOKENS * RANK): 1},
    ("rows", False): {("forward", "all-reduce", TOKENS * RANK): 1, ("forward", "all-gather", TOKENS * HIDDEN): 1,
                      ("backward", "all-reduce", TOKENS * RANK): 1},
}  # fmt: skip


def check() -> None:
    """Raises ValueError where an adapter calls other collectives."""
    fake: Any = importlib.import_module("torch.testing._internal.distributed.fake_pg")
    state: Any = importlib.import_module("megatron.core.parallel_state")
    torch.distributed.init_process_group("fake", store=fake.FakeStore(), rank=0, world_size=TP)
    torch.cuda.current_device = lambda: "cpu"  # where buffers are made
    try:
        state.initialize_model_parallel(TP, create_gloo_process_groups=False)
        found = {case: _called(*case) for case in EXPECTED}
    finally:
        state.destroy_model_parallel()
        torch.distributed.destroy_process_group()
    if found != EXPECTED:
        raise ValueError(f"adapters call other collectives: {found}")


def _called(beside: str, sequence_parallel: bool) -> dict[tuple[str, str, int], int]:
    peft: Any = importlib.import_module("megatron.bridge.peft.utils")
    core: Any = importlib.import_module("megatron.core.transformer.transformer_config")
    config = core.TransformerConfig(
        num_layers=1, hidden_size=HIDDEN, num_attention_heads=4, tensor_model_parallel_size=TP,
        sequence_parallel=sequence_parallel, use_cpu_initialization=True, gradient_accumulation_fusion=False,
    )  # fmt: skip
    adapter = peft.ParallelLinearAdapter(
        HIDDEN, HIDDEN, RANK, "linear", activation="identity", input_is_parallel=beside == "rows",
        model_parallel_config=config, disable_sequence_parallel_comm=beside == "columns",
    )  # fmt: skip
    width = HIDDEN // TP if beside == "rows" else HIDDEN
    x = torch.randn(TOKENS, 1, width, requires_grad=True)
    calls: Counter[tuple[str, str, int]] = Counter()
    with _counted(calls, "forward"):
        out = adapter(x)
    with _counted(calls, "backward"):
        out.sum().backward()
    return dict(calls)


@contextmanager
def _counted(calls: Counter[tuple[str, str, int]], phase: str) -> Iterator[None]:
    """Counts collectives by the elements of the larger of their tensors."""
    real = {name: getattr(torch.distributed, name) for name in _CALLS}

    def counting(name: str) -> Any:
        def call(*tensors: Any, **how: Any) -> Any:
            largest = max(item.numel() for item in (*tensors, *how.values()) if isinstance(item, torch.Tensor))
            calls[phase, _CALLS[name], largest] += 1
            return real[name](*tensors, **how)

        return call

    modules: list[Any] = [
        torch.distributed,
        importlib.import_module("megatron.core.tensor_parallel.mappings"),
        importlib.import_module("megatron.core.tensor_parallel.layers"),
    ]
    saved = [(module, name, getattr(module, name)) for module in modules for name in _ALIASES if hasattr(module, name)]
    for module, name, _ in saved:
        setattr(module, name, counting(_ALIASES[name]))
    try:
        yield
    finally:
        for module, name, value in saved:
            setattr(module, name, value)


# megatron-core's own names for some of them.
_ALIASES = {
    **{name: name for name in _CALLS},
    "dist_all_gather_func": "all_gather_into_tensor",
    "dist_reduce_scatter_func": "reduce_scatter_tensor",
}

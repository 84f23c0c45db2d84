"""Strategies with names on graphs of PyTorch modules, whose dims have no names that mean anything."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph.program.net import Net
from symconfig.graph.program.torch_source.factory import load_module
from symconfig.solve.partition.baselines import baseline
from symconfig.solve.partition.degrees import Way, way
from symconfig.solve.partition.placements import placements
from symconfig.solve.partition.placements_file import python
from symconfig.solve.partition.run import folded

torch = pytest.importorskip("torch", reason="graphs of modules need torch")
pytest.importorskip("transformers", reason="the modules of these tests come from transformers")

AXES = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6),)).axes()


@cache
def module(name: str) -> Net:
    return folded(load_module(f"tests.graph.program.modules:{name}"))


def columns(name: str, strategy: str, degrees: Way) -> dict[str, str]:
    """What every node does along the innermost axis."""
    of = module(name)
    found = baseline(of, AXES, strategy, degrees)
    assert found.rows is not None, found.why
    return {node.name: node.options[row[0]].name for node, row in zip(of.nodes, found.rows, strict=True)}


def test_gpt2_is_split_by_heads_that_its_fused_projection_holds() -> None:
    found = columns("gpt2", "megatron-tp-sp", way(2, 1, 2, sequence_parallel=True, zero=1))
    heads = found["transformer.h.0.attn.c_attn.weight"]
    attention = found["transformer.h.0.attn.scaled_dot_product_attention"]
    assert found["transformer.h.0.attn.c_proj.weight"] == heads == attention
    assert found["transformer.h.0.mlp.c_fc.weight"] == found["transformer.h.0.mlp.c_proj.weight"] != "whole"
    tied = {found[name] for name in ("transformer.wte.weight", "transformer.wte.embedding", "lm_head.linear")}
    assert len(tied) == 1  # the vocabulary
    assert found["transformer.wpe.weight"] == "whole"  # positions are no vocabulary
    assert found["transformer.h.0.ln_1.layer_norm"] == "input_ids:1"


def test_t5_is_split_in_both_its_stacks() -> None:
    found = columns("t5", "megatron-tp", way(2, 1, 2))
    for stack, sublayers in (("encoder", 2), ("decoder", 3)):
        weights = {
            name: option
            for name, option in found.items()
            if name.startswith(f"{stack}.block.") and name.endswith(".weight")
        }
        split = {name for name, option in weights.items() if option != "whole"}
        assert {name for name in weights if "layer_norm" not in name} == split
        assert len({name.split(".layer.")[1][0] for name in split}) == sublayers


def test_mixtrals_experts_go_to_ranks_and_its_router_does_not() -> None:
    found = columns("mixtral", "gshard", way(1, 1, 4, ep=2))
    experts = {
        name: option for name, option in found.items() if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
    }
    assert experts
    assert all("experts" in option for option in experts.values())
    assert {option for name, option in found.items() if name.endswith("mlp.gate.weight")} == {"whole"}


@pytest.fixture(scope="module")
def mesh() -> Iterator[Any]:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield torch.distributed.init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
    torch.distributed.destroy_process_group()


@pytest.mark.parametrize("name", ["gpt2", "t5", "mixtral"])
def test_a_real_module_is_distributed_by_its_plan(mesh: Any, name: str) -> None:
    from tests.graph.program import modules

    of = module(name)
    rows = baseline(of, AXES, "megatron-tp", way(2, 1, 2, zero=3)).rows
    assert rows is not None
    found = placements(of, AXES, rows)
    names: dict[str, Any] = {}
    exec(compile(python(found), "placements.py", "exec"), names)
    with torch.device("meta"):
        made, _ = getattr(modules, name)()
    names["distribute"](made, mesh)
    local = {path: tuple(parameter.to_local().shape) for path, parameter in made.named_parameters()}
    assert local == {path: entry.local for entry in found.parameters for path in entry.paths if path in local}
    fused = {entry.path for entry in found.parameters if "within a stored dim" in entry.note}
    assert all("c_attn" in path for path in fused)
    assert bool(fused) == (name == "gpt2")

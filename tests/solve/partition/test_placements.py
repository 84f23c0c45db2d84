"""The table of placements, held against PyTorch: a module distributed by it has the shapes that a plan counts with."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytest

from symconfig.cost.partition.rates import elements
from symconfig.cost.partition.work import Rows, held
from symconfig.descriptor.mesh import Mesh, MeshLevel
from symconfig.graph import dims as d
from symconfig.graph.layout import FLAT
from symconfig.graph.program.net import Net, net
from symconfig.solve.partition.placements import Placement, Placements, placements, python, stored
from symconfig.solve.partition.run import folded
from tests.solve.partition.programs import convolutions, transformer
from tests.solve.partition.strategies import Way, named_rows, random_rows

AXES = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6), MeshLevel("rail", 2, 1e10, 1e-5))).axes()
DENSE, TIED, EXPERTS = net(transformer(3)), net(transformer(1, tied=True)), net(transformer(2, experts=True))


def table(of: Net, name: str, degrees: Way | None = None) -> Placements:
    rows = named_rows(of, AXES, name, degrees)
    assert rows is not None
    return placements(of, AXES, rows)


def test_columns_and_rows_are_cut_as_megatron_does() -> None:
    found = table(DENSE, "megatron-tp-sp")
    assert [(dim.name, dim.size) for dim in found.mesh] == [("rail", 2), ("nvlink", 4)]  # outermost first
    up, down = found.parameters["layers.1.up_proj.weight"], found.parameters["layers.1.down_proj.weight"]
    assert (up.dims, up.local) == ((d.HIDDEN, d.FFN), (128, 512 // 4))
    assert list(map(str, up.placements)) == ["Replicate()", "Shard(1)"]
    assert list(map(str, down.placements)) == ["Replicate()", "Shard(0)"]


def test_modules_say_how_they_want_inputs_and_leave_outputs() -> None:
    found = table(DENSE, "megatron-tp-sp").modules
    down = found["layers.0.down_proj"]
    assert list(map(str, down.inputs[0].placements)) == ["Shard(0)", "Shard(2)"]
    assert list(map(str, down.outputs[0].placements)) == ["Shard(0)", "Partial()"]
    norm = found["layers.0.mlp_norm"]
    assert list(map(str, norm.outputs[0].placements)) == ["Shard(0)", "Shard(1)"]


def test_layers_that_do_alike_are_one_entry_whatever_comes_before_them() -> None:
    text = python(table(DENSE, "zero3"))
    norm = text.split("'layers.*.attention_norm': {")[1].split("},\n    }")[0]
    assert "'inputs': {'layers.*.mlp_residual': (Shard(0), Shard(0))" in norm
    assert "    'lm_head': {" in text
    assert "layers.0" not in text


def test_a_programs_name_stays_within_the_docstring() -> None:
    name = 'my """ model\\'
    text = python(replace(table(DENSE, "zero3"), program=name))
    docstring = ast.get_docstring(ast.parse(text), clean=False)
    assert docstring is not None
    assert docstring.startswith(f"Placements of {name} on a device mesh")


def test_flat_parameters_are_cut_along_their_first_dim_with_a_note() -> None:
    found = table(DENSE, "zero3")
    assert [dim.size for dim in found.mesh] == [2, 4]
    for entry in found.parameters.values():
        assert entry.placements == (Placement("Shard", 0),) * 2
        assert "FSDP2" in entry.note
    assert all("stage 1" in entry.note for entry in table(DENSE, "zero1").parameters.values())


def test_a_mesh_dim_is_a_run_of_neighbouring_axes_that_every_node_treats_alike() -> None:
    """What one node splits along some of four axes; outermost first."""
    axes = Mesh((MeshLevel("nvlink", 8, 1e11, 1e-6), MeshLevel("rail", 2, 1e10, 1e-5))).axes()
    index = next(i for i, node in enumerate(DENSE.nodes) if node.parameter and node.name == "head")
    for columns, dims in {
        (0, 0, 0, 0): [("rail", 2), ("nvlink", 8)],
        (0, 0, 1, 0): [("rail", 2), ("nvlink_0", 2), ("nvlink_1", 4)],
        (0, 1, 1, 1): [("rail", 2), ("nvlink_0", 4), ("nvlink_1", 2)],
        (1, 0, 1, 0): [("rail", 2), ("nvlink_0", 2), ("nvlink_1", 2), ("nvlink_2", 2)],
    }.items():
        rows = np.zeros((len(DENSE.nodes), 4), dtype=np.int64)
        rows[index] = [4 * column for column in columns]  # zero stages 1 to 3, and then its first dim
        assert DENSE.nodes[index].options[4].name == d.VOCAB
        found = placements(DENSE, axes, rows)
        assert [(dim.name, dim.size) for dim in found.mesh] == dims
        head = found.parameters["head.weight"]
        parts = 2 ** sum(columns)
        assert head.local == (256 // parts, 128)


def test_the_file_says_mesh_and_placements_as_python_tuples() -> None:
    text = python(table(DENSE, "megatron-tp-sp"))
    assert "on a device mesh of 2 x 4 ranks" in text
    assert "MESH_SHAPE = (2, 4)\n" in text
    assert "MESH_DIM_NAMES = ('rail', 'nvlink')\n" in text
    assert "    'layers.*.up_proj.weight': (Replicate(), Shard(1)),  # [128, 512] -> [128, 128]\n" in text
    one = Mesh((MeshLevel("nvlink", 4, 1e11, 1e-6),)).axes(((4,),))
    rows = named_rows(DENSE, one, "zero3")
    assert rows is not None
    single = python(placements(DENSE, one, rows))
    assert "MESH_SHAPE = (4,)\n" in single
    assert "    'layers.*.up_proj.weight': (Shard(0),),  # [128, 512] -> [32, 512]\n" in single


def test_layers_that_differ_are_listed_by_themselves() -> None:
    rows = named_rows(DENSE, AXES, "megatron-tp")
    index = next(i for i, node in enumerate(DENSE.nodes) if node.parameter and node.name == "layers.1.up_proj")
    rows[index] = 0
    text = python(placements(DENSE, AXES, rows))
    assert all(f"'layers.{layer}.up_proj.weight': (" in text for layer in range(3))
    assert "'layers.*.down_proj.weight': (" in text


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """PyTorch's process group that sends nothing."""
    torch = pytest.importorskip("torch")
    from torch.testing._internal.distributed.fake_pg import FakeStore

    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
    yield torch
    torch.distributed.destroy_process_group()


def holder(torch: Any, of: Net) -> Any:
    """A module that has the program's parameters at their paths."""
    root = torch.nn.Module()
    for parameter in of.program.parameters:
        *owners, name = parameter.path.split(".")
        module = root
        for owner in owners:
            if not hasattr(module, owner):
                module.add_module(owner, torch.nn.Module())
            module = getattr(module, owner)
        shape = [of.program.sizes[dim] for dim in parameter.tensor.dims]
        module.register_parameter(name, torch.nn.Parameter(torch.empty(shape, device="meta")))
    return root


CASES = [
    (of, named_rows(of, AXES, name), f"{name} of {kind}")
    for kind, of in {"dense": DENSE, "tied": TIED, "experts": EXPERTS, "convolutions": net(convolutions())}.items()
    for name in ("data", "zero3", "megatron-tp-sp", "gshard")
    if named_rows(of, AXES, name) is not None
] + [(of, random_rows(of, AXES, seed), f"random {seed}") for of in (DENSE, EXPERTS) for seed in (1, 2)]


@pytest.mark.parametrize(("of", "rows"), [case[:2] for case in CASES], ids=[case[2] for case in CASES])
def test_pytorch_has_what_the_plan_counts_with(ranks: Any, of: Net, rows: Rows) -> None:
    found = placements(of, AXES, rows)
    names: dict[str, Any] = {}
    exec(compile(python(found), "placements.py", "exec"), names)
    mesh = ranks.distributed.init_device_mesh("cpu", names["MESH_SHAPE"], mesh_dim_names=names["MESH_DIM_NAMES"])
    module = names["distribute"](holder(ranks, of), mesh)
    here = {path: entry.local for path, entry in found.parameters.items()}
    local = {path: tuple(parameter.to_local().shape) for path, parameter in module.named_parameters()}
    assert local == here
    for parameter, index in zip(of.program.parameters, of.parameter_of, strict=True):
        port = of.nodes[index].ports[0]
        if all(port.places[option].forward != FLAT for option in rows[index]):
            bytes_here = held([port], rows[index][None], elements(AXES))[0, 0]
            assert prod(local[parameter.path]) * parameter.tensor.element_bytes == bytes_here
    assert names["placements"](of.program.operators[0].name, names["MODULES"])["outputs"]


@pytest.mark.parametrize(
    ("sizes", "shape", "expected"),
    [
        ((64, 128), (64, 128), (0, 1)),
        ((4, 16, 64), (64, 64), (0, -1, 1)),  # heads and their channels are rows
        ((64, 3, 4, 16), (64, 192), (0, 1, -1, -1)),  # queries, keys and values beside one another
        ((64, 3, 49), (64, 3, 7, 7), (0, 1, -1)),  # a window's rows and columns
        ((128, 64), (128, 64, 1, 1), (0, 1)),
        ((8, 160, 64), (8, 1, 160, 64), (0, 2, 3)),
        ((6, 4), (2, 3, 4), (-1, 2)),  # the first one is two stored dims, the second one the next
    ],
)
def test_dims_are_found_in_the_stored_shape(sizes: Any, shape: Any, expected: Any) -> None:
    assert stored(sizes, shape) == expected


@pytest.mark.parametrize("name", ["gpt2", "t5", "mixtral"])
def test_a_real_module_is_distributed_by_its_plan(ranks: Any, name: str) -> None:
    pytest.importorskip("transformers", reason="the modules of this test come from transformers")
    from symconfig.graph.program.torch_source.factory import load_module
    from tests.graph.program import modules

    of = folded(load_module(f"tests.graph.program.modules:{name}"))
    found = placements(of, AXES, random_rows(of, AXES, 1))
    names: dict[str, Any] = {}
    exec(compile(python(found), "placements.py", "exec"), names)
    with ranks.device("meta"):
        made, _ = getattr(modules, name)()
    mesh = ranks.distributed.init_device_mesh("cpu", names["MESH_SHAPE"], mesh_dim_names=names["MESH_DIM_NAMES"])
    names["distribute"](made, mesh)
    local = {path: tuple(parameter.to_local().shape) for path, parameter in made.named_parameters()}
    assert local == {path: found.parameters[path].local for path in local}


def test_a_module_is_split_and_distributed_in_two_lines(ranks: Any) -> None:
    import symconfig

    layers = ranks.nn.Sequential(ranks.nn.Linear(64, 4096), ranks.nn.ReLU(), ranks.nn.Linear(4096, 8192))
    layers[0].bias.requires_grad_(False)
    before = {path: weight.detach().clone() for path, weight in layers.named_parameters()}
    found = symconfig.auto_parallel(layers, ranks.zeros(8, 64), cluster="h100", gpus=8)
    assert all(weight.equal(before[path]) for path, weight in layers.named_parameters())
    assert found.distribute(layers, "cpu") is layers
    placed = found.placements().parameters
    assert {path: tuple(weight.to_local().shape) for path, weight in layers.named_parameters()} == {
        path: placed[path].local for path in before
    }
    assert not layers[0].bias.requires_grad
    assert any(weight.to_local().numel() < before[path].numel() for path, weight in layers.named_parameters())

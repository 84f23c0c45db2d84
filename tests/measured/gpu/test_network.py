"""The network that pretends: each rank hears what this one says."""

from __future__ import annotations

import importlib.machinery
import types
from pathlib import Path
from typing import Any

import pytest

import symconfig.measured.gpu

torch = pytest.importorskip("torch")


@pytest.fixture
def network() -> Any:
    path = Path(symconfig.measured.gpu.__file__).with_name("worker_network.py")
    module = types.ModuleType("worker_network")
    importlib.machinery.SourceFileLoader("worker_network", str(path)).exec_module(module)
    return module


def test_a_gather_repeats_this_ranks_part(network: Any) -> None:
    whole = torch.full((6, 2), float("nan"))
    network.gather(whole, torch.tensor([[1.0, 2.0], [3.0, 4.0]])).wait()
    assert whole.view(3, 2, 2).tolist() == [[[1.0, 2.0], [3.0, 4.0]]] * 3


def test_torchs_own_argument_names_are_taken(network: Any) -> None:
    whole, part = torch.zeros(4), torch.ones(2)
    network.gather(output_tensor=whole, input_tensor=part, group=None, async_op=True).wait()
    network.gather_list(tensor_list=[part], tensor=whole[:2], group=None, async_op=False)
    network.exchange(output=whole, input=part, output_split_sizes=None, input_split_sizes=None, group=None)
    network.receive(tensor=part, src=0, group=None, tag=0)
    assert torch.isfinite(whole).all()


def test_a_gather_of_a_shard_of_weights_leaves_the_others_alone(network: Any) -> None:
    weights = torch.arange(6.0)
    network.gather(weights, weights[2:4])
    assert weights.tolist() == [0, 1, 2, 3, 4, 5]


@pytest.mark.parametrize(("sent", "asked"), [(4, 4), (3, 8), (5, 2), (0, 3)])
def test_an_exchange_fills_all_that_is_asked_for(network: Any, sent: int, asked: int) -> None:
    output = torch.full((asked, 2), float("nan"))
    network.exchange(output, torch.ones(sent, 2))
    assert torch.isfinite(output).all()


def test_what_a_neighbour_sends_is_noise(network: Any) -> None:
    tensor = torch.zeros(1000, requires_grad=True)
    network.receive(tensor).wait()
    assert 0.8 < float(tensor.detach().std()) < 1.2


def test_install_reaches_both_of_torchs_names(network: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import torch.distributed as real
    from torch.distributed import distributed_c10d

    for module in (real, distributed_c10d):
        for name in dir(module):
            if callable(getattr(module, name, None)):
                monkeypatch.setattr(module, name, getattr(module, name))
    network.install()
    assert real.all_reduce is distributed_c10d.all_reduce is network.keep
    assert real.irecv is network.receive

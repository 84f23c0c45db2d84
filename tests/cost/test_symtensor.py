"""The source paper's relative cost of single blocks, against arithmetic by hand."""

from __future__ import annotations

from symconfig.cost.symtensor import Relative, relative
from symconfig.descriptor.model import ModelDescriptor
from symconfig.graph.model import blocks
from symconfig.graph.scheme import Scheme
from symconfig.solve.pins import parse
from symconfig.solve.run import request
from symconfig.solve.search import resolved
from symconfig.solve.space import Refused, lattice, points
from tests.cost.support import cost
from tests.sample_models import sample_cluster, sample_model
from tests.solve.naive import job


def one_gpu(model: ModelDescriptor, kind: str) -> Relative:
    asked = resolved(model, sample_cluster(), job(1, 1, 2048))
    wanted = request(model, sample_cluster(), asked, "bf16", parse({}))
    where = lattice(wanted, points(wanted, Scheme(False), Refused()))
    block = next(block for block in cost(model).table.blocks if block.derived.name == kind)
    return relative(blocks(model)[kind], block, Scheme(False), where)


def test_a_multi_token_prediction_layer_adds_what_it_holds_and_not_the_output_weight() -> None:
    model = sample_model("deepseek-v3")
    more = float(one_gpu(model, "mtp").weights[0] - one_gpu(model, "moe").weights[0])
    norms, projection = 3 * model.hidden_size, 2 * model.hidden_size + model.hidden_size
    assert more == norms + projection

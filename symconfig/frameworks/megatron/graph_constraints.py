"""What releases of Megatron-LM refuse of CUDA graphs, and of the expert capacity that a whole iteration's needs."""

from __future__ import annotations

from functools import partial

from symconfig.frameworks.constraint import Constraint, of_module
from symconfig.frameworks.megatron.option_constraints import CONFIG, HYBRIDEP
from symconfig.frameworks.megatron.releases import EXPERT_CAPACITY_SINCE, GRAPHED_MODULES_SINCE
from symconfig.plans.configuration_set import among, has, no

NO_GRAPHS = frozenset(("volta", "cdna3", "cdna4", "davinci"))
OF_EXPERTS = frozenset(("router", "outside experts"))  # graphs of modules that a dense model has not
OF_ATTENTION = frozenset(("outside experts", "all", "full iteration"))  # graphs that replay attention
UNGRAPHED_LAYERS = frozenset(("none", "full iteration"))  # no graph of a layer
OF_MLP = frozenset(("all", "full iteration"))

CORE = {"recompute": "selective", "recompute_modules": ("core_attn",)}
CAPACITY = HYBRIDEP | {"expert_capacity": 1.5}
_OF_GRAPHS = partial(Constraint, about="cuda_graphs")
GRAPHS_GPU = _OF_GRAPHS(
    name="graphs of a GPU",
    predicate=lambda f, p: no(p.cuda_graphs == "none") & among(f.architecture, NO_GRAPHS),
    rule="Transformer Engine's CUDA graphs are of NVIDIA's GPUs, from Ampere on",
    sentence="CUDA graphs: Transformer Engine captures none on {f.architecture} GPUs",
    got="{f.architecture}",
    pins=("cuda_graphs=none",),
    unsaid=True,
    source='transformer_engine/pytorch/graph.py; README.rst, "System Requirements"',
    example={"cuda_graphs": "all", "architecture": "davinci"},
)
GRAPHS_RECOMPUTE_ALONE = _OF_GRAPHS(
    name="graphs beside recompute",
    predicate=lambda f, p: no(p.cuda_graphs == "none") & no(p.recompute == "none"),
    rule="CUDA graphs of whole layers go without recompute before core_v0.16",
    got="recompute {p.recompute}",
    pins=("cuda_graphs=none", "recompute=none"),
    until="core_v0.15.0",
    source=CONFIG,
    example={"cuda_graphs": "all", "recompute": "full"},
)
_OF_GRAPHED = partial(Constraint, about="cuda_graphs", since=GRAPHED_MODULES_SINCE, source=CONFIG)
GRAPHS_RECOMPUTE = _OF_GRAPHED(
    name="graphs of recomputed layers",
    predicate=lambda f, p: no(among(p.cuda_graphs, UNGRAPHED_LAYERS)) & (p.recompute == "full"),
    rule="CUDA graphs of layers go without full recompute",
    got="recompute {p.recompute}",
    pins=("cuda_graphs=none", "cuda_graphs=full_iteration", "recompute=none", "recompute=selective"),
    example={"cuda_graphs": "all", "recompute": "full"},
)
GRAPHS_EXPERT_RECOMPUTE = _OF_GRAPHED(
    name="graphs of recomputed experts",
    predicate=lambda f, p: among(p.cuda_graphs, OF_EXPERTS) & has(p.recompute_modules, "moe"),
    rule="CUDA graphs of the router recompute no experts, which hold it",
    got="{p.cuda_graphs}",
    example={"num_experts": 8, "cuda_graphs": "router", "recompute": "selective", "recompute_modules": ("moe",)},
)
GRAPHS_EXPERTS = _OF_GRAPHS(
    name="graphs of experts",
    predicate=lambda f, p: (p.cuda_graphs == "all") & (f.num_experts > 0),
    rule="CUDA graphs of whole layers need a model without experts, whose tokens are counted on the host",
    got="{p.cuda_graphs}",
    pins=("cuda_graphs=none", "cuda_graphs=router", "cuda_graphs=outside_experts"),
    source=CONFIG,
    example={"num_experts": 8, "cuda_graphs": "all"},
)
GRAPHS_DENSE = _OF_GRAPHED(
    name="graphs of a router without experts",
    predicate=lambda f, p: among(p.cuda_graphs, OF_EXPERTS) & (f.num_experts == 0),
    rule="CUDA graphs of the router need experts",
    got="{p.cuda_graphs}",
    pins=("cuda_graphs=none", "cuda_graphs=all"),
    example={"cuda_graphs": "router"},
)
GRAPHS_DROPOUT = _OF_GRAPHED(
    name="graphs of recomputed dropout",
    predicate=lambda f, p: (
        (among(p.cuda_graphs, OF_ATTENTION) & has(p.recompute_modules, "core_attn") & (f.attention_dropout > 0))
        | (among(p.cuda_graphs, OF_MLP) & has(p.recompute_modules, "mlp") & (f.hidden_dropout > 0))
    ),
    rule="CUDA graphs recompute no dropout",
    got="{p.cuda_graphs}",
    example={"cuda_graphs": "all", "attention_dropout": 0.1} | CORE,
)
FULL_ITERATION_EXPERTS = _OF_GRAPHS(
    name="full iteration of counted experts",
    predicate=lambda f, p: (p.cuda_graphs == "full iteration") & (f.num_experts > 0) & (p.expert_capacity == 0),
    rule="a CUDA graph of the whole iteration needs an expert capacity; without one the host waits for token counts",
    got="{p.cuda_graphs}",
    hint="pin expert_capacity=1.5 and dispatcher=hybridep, or cuda_graphs=outside_experts",
    source="megatron/core/transformer/moe/token_dispatcher.py, setup_metadata: without one dispatch waits for the host",
    example={"num_experts": 8, "cuda_graphs": "full iteration"},
)
OF_CAPACITY = frozenset(("hybridep", "ncclep"))
_OF_CAPACITY = partial(Constraint, about="expert_capacity", got="{p.expert_capacity}", since=EXPERT_CAPACITY_SINCE)
CAPACITY_DISPATCHER = _OF_CAPACITY(
    name="expert capacity of a dispatcher",
    predicate=lambda f, p: (p.expert_capacity > 0) & no(among(p.moe_flex_backend, OF_CAPACITY)),
    rule="expert capacity per rank is implemented for HybridEP only",
    pins=("expert_capacity=none", "dispatcher=hybridep"),
    source=f"{CONFIG}; megatron/core/transformer/moe/paged_stash.py, PagedStashRunner",
    example=CAPACITY | {"moe_flex_backend": "deepep"},
)
CAPACITY_WIDTH = _OF_CAPACITY(
    name="expert capacity over etp",
    predicate=lambda f, p: (p.expert_capacity > 0) & (p.etp > 1),
    rule="expert capacity per rank excludes expert tensor parallelism",
    got="etp {p.etp}",
    pins=("expert_capacity=none", "etp=1"),
    source="megatron/core/transformer/moe/experts.py, _is_fused_impl_supported",
    example=CAPACITY | {"ep": 4, "etp": 2},
)
STASH_CAPACITY = _OF_CAPACITY(
    name="paged stash without a capacity",
    predicate=lambda f, p: p.paged_stash & (p.expert_capacity == 0),
    rule="a paged stash needs an expert capacity",
    about="paged_stash",
    got=None,
    hint="pin expert_capacity=1.5 and dispatcher=hybridep",
    since=None,
    source=CONFIG,
    example=HYBRIDEP | {"paged_stash": True, "expert_capacity": 0.0},
)

GRAPH_CONSTRAINTS = of_module(globals())

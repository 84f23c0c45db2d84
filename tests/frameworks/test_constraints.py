"""Every constraint is read alike by the search, the renderers, the audit and recovery, and a new one by all of them."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest

from symconfig.descriptor.cluster import ClusterDescriptor
from symconfig.descriptor.load import load_cluster
from symconfig.descriptor.model import ModelDescriptor
from symconfig.descriptor.sections import Attention, Indexer
from symconfig.descriptor.training import Optimizer
from symconfig.existing.launch.reading import settings
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.rules import megatron
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.refused import example_options, expressible, fails
from symconfig.existing.rules.rule import BASE
from symconfig.format import picked
from symconfig.frameworks.constraint import FIXED, Constraint, Fixed, Verdict, failing, in_force
from symconfig.frameworks.deepspeed.constraints import DEEPSPEED
from symconfig.frameworks.fsdp.constraints import FSDP
from symconfig.frameworks.known import BACKENDS, FRAMEWORKS
from symconfig.frameworks.megatron import constraints as table
from symconfig.frameworks.megatron.flags import flags, versions
from symconfig.frameworks.megatron.releases import megatron_release
from symconfig.frameworks.programs import PROGRAMS
from symconfig.frameworks.shared import HEADS
from symconfig.plans.configuration import FIELD_OF_PIN, FIELDS, Configuration
from symconfig.plans.configuration_set import COLUMNS, UNKNOWN, ConfigurationSet, no
from symconfig.plans.plan import Plan
from symconfig.render.shared import refused
from symconfig.solve.predict import as_found
from symconfig.solve.prospect import Setup
from tests.existing.rules import examples
from tests.sample_plans import sample_model, sample_plan, with_optimizer
from tests.solve.naive import limits_of

DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp")
CLUSTERS = {"volta": "v100-16gb", "ada": "l40s", "blackwell": "b200", "davinci": "ascend-910b"}
OF_EXPERTS = ("num_experts", "moe_intermediate_size", "shared_expert_intermediate_size", "expert_bias")
TABLES = {"megatron": table.MEGATRON, "deepspeed": DEEPSPEED, "fsdp": FSDP}
EVERY = [(backend, one) for backend, constraints in TABLES.items() for one in constraints]


def named(case: tuple[str, Constraint]) -> str:
    return f"{case[0]}: {case[1].name}, {case[1].until or 'today'}"


def release(backend: str, constraint: Constraint) -> str:
    """The last release of the tables that the constraint holds for."""
    if backend != "megatron":
        return BACKENDS[backend].releases.pinned  # type: ignore[index]
    return [name for name in versions() if name.startswith("core_v") and constraint.in_force(name)][-1]


def model_of(example: dict[str, Any]) -> ModelDescriptor:
    """A model with the example's sizes."""
    if example.get("adapted"):
        model = sample_model("llama2-13b-lora")
        assert model.adapter is not None
        model = model.model_copy(
            update={"adapter": model.adapter.model_copy(update={"r": example.get("column_rank") or 8})}
        )
    else:
        model = sample_model("mixtral-8x7b" if "num_experts" in example else "llama2-13b")
    if model.experts is not None:
        mine = {name: example[name] for name in OF_EXPERTS if name in example}
        model = model.model_copy(update={"experts": model.experts.model_copy(update=mine)})
    own = {name: example[name] for name in ModelDescriptor.model_fields if name in example}
    if example.get("latent"):
        own["attention"] = Attention.MLA
    if example.get("indexed"):
        shares = {"layers": tuple(place % 2 == 0 for place in range(model.num_hidden_layers))}
        own["indexer"] = Indexer(
            index_n_heads=4, index_head_dim=128, index_topk=64, **shares if example.get("shared_choice") else {}
        )
    changed = model.model_copy(update=own)
    for name in ("kind_of_layer", "layer_kinds", "dense_layers", "moe_layers"):  # as they were before
        changed.__dict__.pop(name, None)
    return changed


def cluster_of(example: dict[str, Any]) -> ClusterDescriptor:
    """A cluster of the example's GPUs, so many of which are joined as it says."""
    usual = "blackwell" if example.get("precision") == "mxfp8" else "hopper"
    old = usual if example.get("flash", True) else "volta"
    cluster = load_cluster(CLUSTERS.get(example.get("architecture", old), "h100"))
    if (joined := example.get("joined")) is not None:
        level = cluster.levels[0].model_copy(update={"size": joined})
        cluster = cluster.model_copy(update={"gpus_per_node": joined, "levels": (level, *cluster.levels[1:])})
    return cluster


def fixed_of(plan: Plan, example: Mapping[str, Any]) -> Fixed:
    """The facts of a plan of the example."""
    joined, architecture = plan.cluster.joined_gpus, plan.cluster.gpu.architecture
    return Fixed.of(plan.model, example.get("flash", True), joined, architecture, optimizer=plan.job.optimizer)


def plan_of(backend: str, constraint: Constraint) -> Plan:
    """A plan of the example, of a release that the constraint holds for."""
    example = dict(constraint.example)
    recompute = {
        name: example.pop(name)
        for name in ("recompute", "recompute_method", "recompute_layers", "recompute_modules")
        if name in example
    }
    gpus = example.get("world_size", 8)
    degrees = {name: example.get(name, 1) for name in DEGREES}
    degrees["dp"] = max(1, gpus // (degrees["tp"] * degrees["pp"] * degrees["cp"]))
    said = {name: example[name] for name in FIELDS if name in example and name not in (*DEGREES, "dp")}
    said.setdefault("sequence_parallel", False)
    said.setdefault("zero_stage", 3 if backend == "fsdp" else 1)
    cluster = cluster_of(example)
    plan = sample_plan(model_of(example), cluster, backend, release(backend, constraint), **degrees, **said)
    if not example.get("flash", True):
        plan = replace(plan, job=plan.job.model_copy(update={"attention": "unfused"}))
    if "optimizer" in example or "narrow_states" in example:
        width: Literal["bf16", "fp32"] = "bf16" if example.get("narrow_states") else "fp32"
        optimizer = Optimizer(name=example.get("optimizer", "adam"), exp_avg=width)
        plan = with_optimizer(plan, optimizer)
    if recompute:
        recompute.setdefault("recompute_method", "uniform" if recompute["recompute"] == "full" else None)
        plan = replace(plan, best=replace(plan.best, configuration=replace(plan.best.configuration, **recompute)))
    return plan


def columns(point: Configuration) -> ConfigurationSet:
    """The point thrice, as the search has many."""
    same = picked(point, *COLUMNS)
    return ConfigurationSet(
        **{name: np.array([value] * 3) if name in (*DEGREES, "dp") else value for name, value in same.items()}
    )


def test_facts_of_which_some_are_unknown_are_compared() -> None:
    """They are keys of what was worked out; a dataclass of Python 3.13 and later would ask UNKNOWN itself."""
    facts = Fixed(num_attention_heads=8)
    assert {facts: 1}[Fixed(num_attention_heads=8)] == 1
    assert facts != Fixed()
    assert facts != Fixed(num_attention_heads=4)


@pytest.mark.parametrize(("backend", "constraint"), EVERY, ids=[named(case) for case in EVERY])
def test_every_reader_finds_the_example_to_fail(backend: str, constraint: Constraint) -> None:
    plan = plan_of(backend, constraint)
    fixed, point = fixed_of(plan, constraint.example), plan.best.configuration
    assert constraint.verdict(fixed, point) is Verdict.FAILS
    assert constraint.mask(fixed, columns(point), (3,)).all()  # the search
    found = refused(plan, backend, plan.best.target.version)[constraint]
    assert found.what  # the renderer
    assert "{" not in found.what
    assert constraint.verdict(Fixed(), ConfigurationSet()) in (Verdict.UNKNOWN, Verdict.HOLDS)
    if backend == "megatron" and expressible(constraint):
        assert audited(constraint, example_options(constraint.example)), "the audit"


def pinned(pin: str) -> dict[str, Any]:
    """What a pin with one value, or with a least one, makes of a point."""
    name, _, value = pin.partition("=")
    match name:
        case "sp":
            return {"sequence_parallel": value != "0"}
        case "recompute":
            return {"recompute": value, "recompute_method": None, "recompute_layers": 1}
        case "moe_overlap" | "activation_offload":
            return {FIELD_OF_PIN.get(name, name): value not in ("off", "0")}
        case "precision" | "cp_comm":
            return {name: value}
        case "user_buffers" | "fp8_param_gather" | "fused_loss" | "fp8_attention":
            return {FIELD_OF_PIN[name]: value == "on"}
        case "expert_capacity":
            return {"expert_capacity": 0.0 if value == "none" else float(value)}
        case "dispatcher":
            nccl = value == "alltoall"
            return {"moe_dispatcher": "alltoall" if nccl else "flex", "moe_flex_backend": None if nccl else value}
        case "cuda_graphs":
            return {"cuda_graphs": value.replace("_", " ")}
        case "grad_dtype":
            return {"grad_bytes": {"fp32": 4, "bf16": 2}[value]}
        case _:
            return {FIELD_OF_PIN.get(name, name): int(value.removesuffix(".."))}


@pytest.mark.parametrize(("backend", "constraint"), EVERY, ids=[named(case) for case in EVERY])
def test_a_plan_with_a_pin_that_avoids_it_is_not_refused_nor_is_one_that_divides_nothing(
    backend: str, constraint: Constraint
) -> None:
    plan = plan_of(backend, constraint)
    fixed, point = fixed_of(plan, constraint.example), plan.best.configuration
    for pin in constraint.pins:
        if "=" in pin:
            assert constraint.verdict(fixed, replace(point, **pinned(pin))) is Verdict.HOLDS, pin
    if constraint.about in DEGREES:
        alone = replace(point, **dict.fromkeys(DEGREES, 1))
        assert constraint.verdict(fixed, alone) is Verdict.HOLDS


def audited(constraint: Constraint, words: str) -> list[str]:
    """The rules of a constraint that a launch with these options breaks."""
    version = release("megatron", constraint)
    example = replace(megatron.RULES[0], example=words)
    given = settings(examples.words(example), "launch.sh")
    facts = MegatronFacts(
        Namespace(given, flags(version)),
        world_size=constraint.example.get("world_size", 8),
        gpus_per_node=8,
        joined=constraint.example.get("joined", 8),
        architecture=cluster_of(dict(constraint.example)).gpu.architecture,
        environment={},
        program="pretrain_gpt.py",
    )
    if constraint is table.EXPERT_BIAS:  # one of the reasons of a rule that has others
        return ["biases-of-experts"] if fails(constraint, replace(facts, names=Namespace(
            settings(shlex.split(words.replace("--disable-bias-linear", "")), "launch.sh"), flags(version)
        ))) else []  # fmt: skip
    mine = {rule.name for rule in megatron.every() if constraint in rule.constraints}
    return [finding.rule for finding in megatron.findings(facts) if finding.rule in mine]


@pytest.mark.parametrize(("backend", "constraint"), EVERY, ids=[named(case) for case in EVERY])
def test_recovery_says_of_the_example_what_the_table_says(backend: str, constraint: Constraint) -> None:
    plan = plan_of(backend, constraint)
    asked = limits_of(backend, plan.best.target.version, plan.model)
    configuration = Setup.of(plan.best, asked_framework(backend))
    found = as_found(
        plan.model,
        plan.cluster if constraint.example.get("precision") == "mxfp8" else load_cluster("h100"),
        replace(configuration, vpp=1, pipeline_layout=None),
    )
    point = found.columns()
    said = constraint.verdict(asked.fixed, point)
    if constraint.divides:
        assert said is Verdict.FAILS
        assert any(one.divides for one in failing(asked.table, asked.fixed, point))


def asked_framework(backend: str) -> Any:
    return FRAMEWORKS[backend]


def test_key_value_heads_are_shared_by_ranks_since_their_release() -> None:
    """megatron/core/transformer/transformer_config.py of core_v0.15.3 and core_v0.16.0: a multiple of tp, then also a
    divisor."""
    for version in versions():
        shared = megatron_release(version) >= (0, 16)
        plan = sample_plan("qwen3-30b-a3b", "h100", tp=8, dp=1, ep=8, pp=1, version=version)
        assert plan.model.num_key_value_heads == 4
        names = {one.name for one in refused(plan, "megatron", version)}
        assert ("num_key_value_heads" in names) is not shared, version
        words = shlex.split(
            f"{BASE} --tensor-model-parallel-size 8 --sequence-parallel --group-query-attention --num-query-groups 4"
        )
        facts = MegatronFacts(Namespace(settings(words, "launch.sh"), flags(version)), world_size=8, environment={})
        rules = {finding.rule for finding in megatron.findings(facts)}
        assert ("query-groups-over-tp" in rules) is not shared, version
        asked = limits_of("megatron", version, plan.model)
        found = failing(asked.refusals, asked.fixed, ConfigurationSet(tp=8))
        said = {one.name for one in found if "num_key_value_heads" in one.asks}
        assert said == (set() if shared else {"num_key_value_heads"}), version


def test_a_new_constraint_of_a_release_is_read_by_all(monkeypatch: pytest.MonkeyPatch) -> None:
    new = Constraint(
        name="tp of four",
        predicate=lambda f, p: (p.tp == 4) & (f.num_attention_heads > 8),
        rule="tp 4 is not made for more than 8 heads",
        sentence="{f.num_attention_heads} heads are too many for tp {p.tp}",
        about="tp",
        pins=("tp",),
        since="core_v0.18.2",
        divides=True,
        source="nowhere",
        example={"tp": 4},
    )
    every = (*table.MEGATRON, new)
    monkeypatch.setattr(table, "MEGATRON", every)
    monkeypatch.setitem(BACKENDS, "megatron", replace(BACKENDS["megatron"], constraints=every))
    plan = sample_plan("llama2-13b", "h100", tp=4, dp=2, pp=1)
    for version, there in (("core_v0.17.1", False), ("core_v0.18.2", True), ("core_v0.19.0", True)):
        asked = limits_of("megatron", version, plan.model)
        masks = [one.mask(asked.fixed, ConfigurationSet(tp=np.array([2, 4, 8])), (3,)) for one in asked.refusals]
        assert np.any(masks, axis=0).tolist() == [False, there, False]
        said = list(refused(plan, "megatron", version).values())
        assert [problem.what for problem in said] == (["40 heads are too many for tp 4"] if there else [])
        assert [problem.pins for problem in said] == ([("tp=..3", "tp=5..")] if there else [])
        words = shlex.split(f"{BASE} --tensor-model-parallel-size 4 --sequence-parallel")
        facts = MegatronFacts(Namespace(settings(words, "launch.sh"), flags(version)), world_size=8, environment={})
        assert ("tp-of-four" in {finding.rule for finding in megatron.findings(facts)}) is there
        configuration = Setup.of(plan.best, asked_framework("megatron"), version=version)
        found = as_found(plan.model, plan.cluster, configuration)
        assert (new in failing(found.request.limits.table, asked.fixed, found.columns())) is there


def test_an_unknown_value_is_a_third_answer() -> None:
    degrees = np.array([1, 2])
    assert (False & UNKNOWN) is False
    assert (UNKNOWN | True) is True
    assert ((UNKNOWN > 1) & True) is UNKNOWN
    assert no(UNKNOWN) is UNKNOWN
    assert not ((degrees > 2) & UNKNOWN).any()
    assert ((degrees > 1) & UNKNOWN) is UNKNOWN
    with pytest.raises(TypeError):
        bool(UNKNOWN)
    assert HEADS.verdict(Fixed(num_attention_heads=20), ConfigurationSet()) is Verdict.UNKNOWN
    assert table.SEQUENCE_OVER_CP.verdict(Fixed(), ConfigurationSet(cp=1)) is Verdict.HOLDS
    assert table.SEQUENCE_OVER_CP.verdict(Fixed(), ConfigurationSet(cp=8, seq_length=4104)) is Verdict.FAILS


@pytest.mark.parametrize(
    ("target", "constraint"),
    [pytest.param(target, one, id=f"{target}: {one.name}") for target, table in PROGRAMS.items() for one in table],
)
def test_a_program_s_constraint_fails_at_its_example_and_holds_with_a_pin(target: str, constraint: Constraint) -> None:
    known = {"backend": "megatron", "num_hidden_layers": 32, **constraint.example}
    fixed = Fixed(**{name: value for name, value in known.items() if name in FIXED})
    point = ConfigurationSet(**{name: value for name, value in known.items() if name in COLUMNS})
    assert constraint.verdict(fixed, point) is Verdict.FAILS
    assert "{" not in constraint.sentence_at(fixed, point)
    assert constraint.verdict(Fixed(), ConfigurationSet()) is Verdict.UNKNOWN
    for pin in constraint.pins:
        if "=" in pin and ".." not in pin:
            name, _, value = pin.partition("=")
            avoided = {"optimizer_offload": float(value)} if name == "optimizer_offload" else pinned(pin)
            both = {"param_offload": False} if "param_offload" in constraint.example else {}
            assert constraint.verdict(fixed, point.having(**avoided, **both)) is Verdict.HOLDS, pin
    assert constraint.avoiding(point)


def test_names_are_unique_in_a_release() -> None:
    for backend, constraints in TABLES.items():
        for version in versions() if backend == "megatron" else (BACKENDS[backend].releases.pinned,):  # type: ignore[index]
            names = [one.name for one in in_force(constraints, version)]
            assert len(set(names)) == len(names)

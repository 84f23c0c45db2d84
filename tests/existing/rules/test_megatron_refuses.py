"""Megatron-LM's own parser and config classes on each rule's example: what is called an error, and when it shows."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from symconfig.existing.launch.reading import Setting, settings
from symconfig.existing.rules.facts import MegatronFacts
from symconfig.existing.rules.megatron import RULES, findings
from symconfig.existing.rules.rule import Rule
from symconfig.verify import megatron_session
from symconfig.verify.megatron_session import Job, Result
from tests.existing.rules import examples
from tests.existing.rules.megatron_support import facts
from tests.verify.megatron_support import LIMIT_S, source

pytestmark = pytest.mark.usefixtures("warm_megatron")

REST = (
    "--mock-data",
    "--tokenizer-type",
    "NullTokenizer",
    "--vocab-size",
    "1000",
    "--train-iters",
    "10",
    "--lr",
    "1e-4",
    "--min-lr",
    "1e-5",
)
# Errors that core_v0.19 takes: what happens instead, and when.
LATER = {
    "rampup-over-replicas": "the calculator of microbatches asserts it at the first step",
    "layout-of-mtp-first": "the builder of the model refuses it",
    "interleaving-group": "the schedule refuses it in the first step",
    "query-groups-ignored": "another model is trained",
    "query-groups-over-heads": "the first forward pass fails",
    "qkv-width": "the first weight that is built fails",
    "mlp-over-tp": "the first weight that is built fails",
    "sequence-over-tp": "the first scatter fails",
    "low-precision-sizes": "Transformer Engine asserts it in the first product",
    "expert-over-etp": "the first weight that is built fails",
    "shared-expert-over-tp": "the first weight that is built fails",
    "experts-need-sequence-parallel": "the first forward pass raises",
    "topk-over-experts": "the first router fails",
    "biases-of-experts": "the first experts that are built assert it",
    "local-attention-over-cp": "the first attention that is built asserts it",
    "attention-environment": "the model asserts it when it is built",
    "layers-of-experts": "the builder of the layers asserts it",
    "heads-over-cp": "Transformer Engine asserts it in the first attention",
    "ulysses-latent": "Transformer Engine asserts it in the first attention",
    "windows-over-ring": "Transformer Engine asserts it in the first attention",
    "cp-without-kernels": "Transformer Engine finds no attention in the first step",
    "format-without-kernels": "Transformer Engine refuses it when the first layer is built",
    "warm-up-beyond-decay": "the schedule of the learning rate asserts it",
    "user-buffers-over-far-ranks": "Transformer Engine cannot share the buffers when it makes them",
    "user-buffers-of-a-gpu": "Transformer Engine raises when it makes the buffers",
    "user-buffers-in-fp16": "another model is trained",
    "expert-capacity-over-etp": "the experts assert it when they are built",
    "full-iteration-of-counted-experts": "the graph's capture fails where tokens are counted on the host",
    "deepep-ranks": "the dispatcher or DeepEP's buffer asserts it in the first layer of experts",
    "deepep-nodes": "DeepEP cannot share its buffers in the first layer of experts",
    "deepep-of-a-gpu": "DeepEP's kernels fail in the first layer of experts",
    "hybridep-of-a-gpu": "HybridEP's kernels fail in the first layer of experts",
}
# No errors, since a fork may have the option or the shell set the variable.
SOONER = {"option-of-a-fork", "options-of-several-versions", "environment-missing"}
# This machine has no kernel for it; where there is one it parses.
NO_KERNEL = {"expert-options-without-experts"}
# What else of a rule is refused, beside its example.
FURTHER = """
fp16-lm-cross-entropy-refused: --fp16-lm-cross-entropy --fp32-residual-connection
optimizer-types-refused: --main-grads-dtype bf16
optimizer-types-refused: --main-params-dtype fp16
optimizer-types-refused: --exp-avg-sq-dtype fp16
use-precision-aware-optimizer-refused: --use-precision-aware-optimizer --optimizer muon
first-last-layers-bf16-refused: --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 \
  --num-layers-at-end-in-bf16 40
fp4-param-gather-refused: --fp4-param-gather
reuse-grad-buf-for-mxfp8-param-ag-refused: --fp8-format hybrid --fp8-recipe mxfp8 --reuse-grad-buf-for-mxfp8-param-ag
fp8-output-proj-refused: --fp8-output-proj --fp8-format hybrid
moe-router-padding-for-quantization-refused: --moe-router-padding-for-quantization
attention-backend-local-refused: --attention-backend local
delay-wgrad-compute-refused: --delay-wgrad-compute --transformer-impl local
cuda-graph-impl-full-iteration-refused: --cuda-graph-impl full_iteration --no-check-for-nan-in-loss-and-grad \
  --cuda-graph-modules attn
enable-cuda-graph-refused: --enable-cuda-graph --external-cuda-graph
cuda-graph-scope-refused: --cuda-graph-impl local --cuda-graph-scope attn --cuda-graph-modules attn
graphs-of-parts-refused: --cuda-graph-impl local --cuda-graph-modules moe_router
graphs-of-parts-refused: --cuda-graph-impl local --cuda-graph-modules attn moe
graphs-of-parts-refused: --num-experts 8 --disable-bias-linear --moe-grouped-gemm \
  --moe-token-dispatcher-type alltoall --cuda-graph-impl transformer_engine --cuda-graph-modules moe_router \
  --recompute-granularity selective --recompute-modules moe
graphs-of-recomputed-dropout: --cuda-graph-impl transformer_engine --attention-dropout 0 \
  --recompute-granularity selective --recompute-modules mlp
cpu-offloading-num-layers-refused: --cpu-offloading-num-layers 4 --pipeline-model-parallel-size 2
cpu-offloading-num-layers-refused: --cpu-offloading-num-layers 40
defer-embedding-wgrad-compute-refused: --defer-embedding-wgrad-compute --no-gradient-accumulation-fusion
position-embedding-type-mrope-refused: --position-embedding-type mrope
position-embedding-type-relative-refused: --position-embedding-type relative --transformer-impl local
moe-latent-size-refused: --moe-latent-size 512
qk-clip-refused: --qk-clip --qk-clip-threshold 0
save-intervals-refused: --save x --save-interval 0
save-intervals-refused: --save x --save-interval 10 --save-params-interval 5
ckpt-format-torch-dcp-refused: --ckpt-format torch_dcp --pipeline-model-parallel-size 2
disable-gloo-process-groups-refused: --disable-gloo-process-groups --dist-ckpt-optim-fully-reshardable \
  --distrib-optim-fully-reshardable-mem-efficient
overlap-param-gather-with-optimizer-step-refused: --overlap-param-gather-with-optimizer-step
optimizer-instances: --num-experts 8 --disable-bias-linear --expert-model-parallel-size 8 \
  --num-distributed-optimizer-instances 2
optimizer-refused: --optimizer muon --use-torch-fsdp2
use-megatron-fsdp-refused: --use-megatron-fsdp --ckpt-format fsdp_dtensor --optimizer muon
fsdp-manual-registration-refused: --fsdp-manual-registration --use-megatron-fsdp --ckpt-format fsdp_dtensor
gpus-over-degrees: --tensor-parallel-num-weight-shards 3
gpus-over-degrees: --tensor-parallel-num-weight-shards 3 --tensor-model-parallel-size 2
tensor-parallel-num-weight-shards-refused: --tensor-parallel-num-weight-shards 2 --fp8-format hybrid --fp8-recipe mxfp8
tensor-parallel-num-weight-shards-refused: --tensor-parallel-num-weight-shards 2 --dist-ckpt-optim-fully-reshardable \
  --distrib-optim-fully-reshardable-mem-efficient
expert-tensor-parallel-num-weight-shards-refused: --expert-tensor-parallel-num-weight-shards 2 \
  --ckpt-format fsdp_dtensor
weight-shards-over-tp: --expert-tensor-parallel-num-weight-shards 3 --expert-tensor-parallel-size 2
hybrid-context-parallel-refused: --hybrid-context-parallel --calculate-per-token-loss --pipeline-model-parallel-size 2
hybrid-context-parallel-refused: --hybrid-context-parallel --calculate-per-token-loss --dataloader-type cyclic
hybrid-layer-pattern-refused: --hybrid-layer-pattern M*M*|M*M* --num-virtual-stages-per-pipeline-rank 2
positions-too-few: --decoder-seq-length 4096
weight-decay-schedule: --start-weight-decay 0.1
data-path-refused: --data-path x --data-args-path y
not-positive: --make-vocab-size-divisible-by 0
not-positive: --vocab-size 0
not-positive: --num-dataset-builder-threads 0
optimizer-cpu-offload-refused: --fp8-format hybrid --fp8-recipe tensorwise --fp8-param-gather \
  --use-precision-aware-optimizer --optimizer-cpu-offload
use-megatron-fsdp-refused: --use-megatron-fsdp --ckpt-format fsdp_dtensor --no-gradient-accumulation-fusion \
  --data-parallel-sharding-strategy optim_grads_params --check-weight-hash-across-dp-replicas-interval 10
distribute-saved-activations-refused: --distribute-saved-activations --recompute-granularity full \
  --recompute-method uniform --recompute-num-layers 1
first-last-layers-bf16-refused: --fp8-format hybrid --fp8-recipe tensorwise --first-last-layers-bf16 \
  --num-layers-at-start-in-bf16 40
cpu-offloading-num-layers-refused: --cpu-offloading-num-layers 4 --recompute-activations
hybrid-layer-pattern-refused: --hybrid-layer-pattern M*M*M*M* --num-layers 8 --account-for-embedding-in-pipeline-split
train-iters-refused: --train-iters 10 --lr-warmup-samples 5
mock-data-refused: --mock-data --train-data-path x
"""


def further() -> list[tuple[str, str]]:
    """A rule and the options that break it, behind the examples' base."""
    lines = FURTHER.replace("\\\n", "").strip().splitlines()
    return [(rule, options) for rule, _, options in (line.partition(": ") for line in lines)]


def broken() -> dict[str, MegatronFacts]:
    """The launches of `further`, by the rule and the options."""
    return {f"{rule}: {options}": facts(options, environment={}) for rule, options in further()}


def shown() -> list[Rule[MegatronFacts]]:
    """Rules whose example is for the Megatron that is here."""
    release = "core_v{}.{}.".format(*source().release)
    return [rule for rule in RULES if examples.version(rule).startswith(release)]


@pytest.fixture(scope="module")
def answers() -> dict[str, Result]:
    """What one process that imports Megatron once says of all of them."""
    jobs = [
        Job(name, words_of(launch.names.settings), 8, megatron_session.CAPABILITY[examples.ARCHITECTURE])
        for name, launch in broken().items()
    ]
    return megatron_session.run(source(), [*jobs, *map(job, shown())], LIMIT_S)


def test_megatron_refuses_what_else_breaks_a_rule(answers: dict[str, Result]) -> None:
    launches = broken()
    silent = [
        name
        for name, launch in launches.items()
        if name.partition(":")[0] not in {item.rule for item in findings(launch) if item.severity == "error"}
    ]
    assert (silent, [name for name in launches if answers[name].ok]) == ([], [])


def words_of(given: Sequence[Setting]) -> tuple[str, ...]:
    """The options, with the data and the learning rate that they are not about."""
    named = {setting.name for setting in given}
    added = [setting for setting in settings(REST, "") if setting.name not in named]
    if named & {"--data-path", "--train-data-path", "--fim-data"}:
        added = [setting for setting in added if setting.name != "--mock-data"]
    return tuple(word for setting in (*given, *added) for word in (setting.name, *(v.text for v in setting.values)))


def job(rule: Rule[MegatronFacts]) -> Job:
    """The example on its GPUs."""
    launch = examples.megatron_facts(rule)
    exported = {name: word.text for name, word in (launch.environment or {}).items()}
    capability = megatron_session.CAPABILITY[rule.architecture or examples.ARCHITECTURE]
    return Job(rule.name, words_of(launch.names.settings), rule.gpus, capability, env=exported)


def test_megatron_refuses_the_errors_but_for_those_that_show_later(answers: dict[str, Result]) -> None:
    rules = shown()
    refused = {rule.name for rule in rules if not answers[rule.name].ok} - NO_KERNEL
    errors = {rule.name for rule in rules if rule.severity == "error"}
    expected = errors - set(LATER) | (SOONER & {rule.name for rule in rules})
    taken, unexpected = sorted(expected - refused), sorted(refused - expected)
    assert not taken, f"Megatron-LM takes their examples; LATER says what fails, or they are no errors: {taken}"
    assert not unexpected, f"Megatron-LM refuses their examples: {unexpected}"

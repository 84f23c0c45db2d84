"""Rules of the section zero_optimization: what its stage ignores, what costs time, what does not fit together."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.rules.deepspeed_facts import DeepSpeedFacts
from symconfig.existing.rules.deepspeed_known import says
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.deepspeed import constraints as table
from symconfig.frameworks.deepspeed.keys import ZERO

MAX_BUCKET_BYTES = 2**30  # at two bytes an element; overlap_comm keeps two of them
BUCKETS = ("reduce_bucket_size", "allgather_bucket_size", "stage3_prefetch_bucket_size")
# Keys of ZeRO++ -> the value that is off. All work on sharded weights (arXiv 2306.10209).
_PLUS_PLUS = {
    "zero_hpz_partition_size": 1,
    "zero_quantized_weights": False,
    "zero_quantized_nontrainable_weights": False,
    "zero_quantized_gradients": False,
}
# Switches that load the base model in 4 bits: Transformers' and TRL's, Axolotl's, LLaMA-Factory's, QLoRA's own script.
_FOUR_BITS = ("load_in_4bit", "use_4bit", "quantization_bit", "bits")

DEEPSPEED: Rules[DeepSpeedFacts] = Rules()


def _example(zero: str, extra: str = "") -> str:
    return f'{{"train_micro_batch_size_per_gpu": 1, "bf16": {{"enabled": true}}{extra}, "zero_optimization": {zero}}}'


DEEPSPEED.rule(
    "deepspeed-param-offload-stage",
    "warning",
    "Parameters are offloaded below stage 3",
    "Stages 0 to 2 keep all parameters on the GPU, and say nothing (deepspeed/runtime/zero/config.py: valid only "
    "with stage 3): the memory that was to be saved is not.",
    _example('{"stage": 2, "overlap_comm": true, "offload_param": {"device": "cpu"}}'),
)(says((ZERO, "offload_param"), table.PARAM_OFFLOAD, of_key=True))

DEEPSPEED.rule(
    "deepspeed-offload-without-zero",
    "warning",
    "The optimizer is offloaded without ZeRO",
    "Only the ZeRO optimizers look at it (deepspeed/runtime/engine.py, _configure_zero_optimizer).",
    _example('{"stage": 0, "offload_optimizer": {"device": "cpu"}}'),
)(says((ZERO, "offload_optimizer"), table.OFFLOAD_WITHOUT_ZERO, of_key=True))

DEEPSPEED.rule(
    "deepspeed-partial-offload-stage",
    "error",
    "A part of the optimizer is offloaded below stage 3",
    "DeepSpeed refuses it (deepspeed/runtime/zero/config.py, offload_ratio_check).",
    _example('{"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu", "ratio": 0.5}}'),
)(says((ZERO, "offload_optimizer", "ratio"), table.PARTIAL_OFFLOAD))


@DEEPSPEED.rule(
    "deepspeed-nvme-without-path",
    "error",
    "Offload to NVMe has no folder",
    "The swapper joins nvme_path with the names of its files (deepspeed/runtime/swap_tensor), and fails without.",
    _example('{"stage": 3, "offload_optimizer": {"device": "nvme"}}'),
)
def _nvme(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for name in ("offload_optimizer", "offload_param"):
        if facts.get(ZERO, name, "device") == "nvme" and not facts.get(ZERO, name, "nvme_path"):
            yield facts.problem((ZERO, name), "goes to nvme, but has no nvme_path", hint="nvme_path of a local disk")


@DEEPSPEED.rule(
    "deepspeed-unpinned-offload",
    "warning",
    "Offload copies from pageable memory",
    "Copies between a GPU and memory that is not pinned go through a staging buffer and wait for it "
    "(deepspeed/runtime/zero/offload_config.py, pin_memory).",
    _example('{"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu", "pin_memory": false}}'),
)
def _unpinned(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for name in ("offload_optimizer", "offload_param"):
        if facts.offloads(name) and facts.get(ZERO, name, "pin_memory") is False:
            yield facts.problem(
                (ZERO, name, "pin_memory"),
                "copies from memory that is not pinned, at about half the rate, and not beside computation",
                hint="true",
            )


@DEEPSPEED.rule(
    "deepspeed-offload-one-thread",
    "warning",
    "The offloaded optimizer has one thread a rank",
    "DeepSpeed's CPU Adam runs on OpenMP threads, and torchrun sets OMP_NUM_THREADS=1 for more than one process a "
    "node (torch/distributed/run.py).",
    "torchrun --nproc_per_node 8 train.py --deepspeed ds.json\n"
    + _example('{"stage": 2, "overlap_comm": true, "offload_optimizer": {"device": "cpu"}}'),
    environment={},
)
def _one_thread(facts: DeepSpeedFacts) -> Iterator[Problem]:
    torchrun = any("torchrun" in word or "torch.distributed" in word for word in facts.launcher)
    if (
        facts.offloads("offload_optimizer")
        and torchrun
        and facts.environment is not None
        and "OMP_NUM_THREADS" not in facts.environment
    ):
        yield facts.problem(
            (ZERO, "offload_optimizer"),
            "runs the optimizer on the host with one thread a rank: "
            "torchrun sets OMP_NUM_THREADS to 1 where nobody does",
            hint="export OMP_NUM_THREADS= the host's cores over its GPUs",
        )


@DEEPSPEED.rule(
    "deepspeed-large-bucket",
    "warning",
    "A communication buffer takes gigabytes",
    "Buckets are in elements and not in bytes; such buffers are held beside the model on every GPU (ray#62486).",
    _example('{"stage": 2, "overlap_comm": true, "reduce_bucket_size": 2000000000}'),
)
def _buckets(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for key in BUCKETS:
        value = facts.number(ZERO, key)
        if value is not None and 2 * value > MAX_BUCKET_BYTES:
            yield facts.problem(
                (ZERO, key),
                f"{value:.0f} elements are {2 * value / 2**30:.1f} GiB at two bytes; "
                "overlap_comm keeps two such buffers",
                hint="50000000 to 500000000",
            )


@DEEPSPEED.rule(
    "deepspeed-stage3-keys",
    "warning",
    "Keys of stage 3 stand at a lower stage",
    "Stages 1 and 2 have an optimizer of their own, which does not read them "
    "(deepspeed/runtime/zero/stage_1_and_2.py).",
    _example('{"stage": 2, "overlap_comm": true, "stage3_max_live_parameters": 1000000000}'),
)
def _stage3_keys(facts: DeepSpeedFacts) -> Iterator[Problem]:
    names = [key for key in facts.section(ZERO) if key.startswith("stage3_")]
    if names and facts.stage < 3:
        yield facts.problem(
            (ZERO, names[0]), f"stage3_ keys are ignored at stage {facts.stage}", of_key=True, hint="leave them out"
        )


@DEEPSPEED.rule(
    "deepspeed-zeropp-stage",
    "warning",
    "ZeRO++ is asked for below stage 3",
    "Its second partition and its quantised collectives are those of sharded weights "
    "(deepspeed/runtime/zero/partition_parameters.py, arXiv 2306.10209); lower stages do not read the keys.",
    _example('{"stage": 2, "overlap_comm": true, "zero_hpz_partition_size": 8}'),
)
def _plus_plus(facts: DeepSpeedFacts) -> Iterator[Problem]:
    for key, off in _PLUS_PLUS.items():
        value = facts.get(ZERO, key)
        if value not in (None, off, 0) and facts.stage != 3:
            yield facts.problem(
                (ZERO, key),
                f"is ignored at stage {facts.stage}: ZeRO++ works on sharded weights",
                of_key=True,
                hint="stage 3, or leave it out",
            )


@DEEPSPEED.rule(
    "deepspeed-no-overlap",
    "warning",
    "Gradients are not reduced beside the backward pass",
    "Without overlap_comm the reduction runs on the stream of the computation. Where it is not given it is on at "
    "stage 3 only (deepspeed/runtime/zero/config.py, overlap_comm_valid).",
    _example('{"stage": 2, "overlap_comm": false}'),
)
def _overlap(facts: DeepSpeedFacts) -> Iterator[Problem]:
    value = facts.get(ZERO, "overlap_comm")
    off = value is False or (value is None and facts.stage in (1, 2))
    if facts.stage and facts.may_share_data and off:
        what = "is off" if value is False else f"is not given, and off at stage {facts.stage}"
        yield facts.problem(
            (ZERO, "overlap_comm"),
            f"{what}: gradients are reduced after the backward pass and not beside it",
            hint="true",
        )


@DEEPSPEED.rule(
    "deepspeed-slow-switch",
    "warning",
    "A switch that costs time or memory is off",
    "contiguous_gradients, reduce_scatter and allgather_partitions are on by default; what each does without is "
    "in deepspeed/runtime/zero/stage_1_and_2.py. reduce_scatter matters only without "
    "use_multi_rank_bucket_allreduce, which all-reduces every gradient by itself.",
    _example('{"stage": 2, "overlap_comm": true, "contiguous_gradients": false}'),
)
def _slow_switches(facts: DeepSpeedFacts) -> Iterator[Problem]:
    costs = {
        "contiguous_gradients": "gradients stay where the backward pass puts them, and memory is fragmented",
        "reduce_scatter": "every gradient is all-reduced to every rank, twice what its owner needs",
        "allgather_partitions": "updated weights are sent by one broadcast a rank, one after the other",
    }
    for key, cost in costs.items():
        ignored = facts.stage == 0 or (facts.stage == 3 and key != "contiguous_gradients")
        # With it on, all is all-reduced anyway (average_tensor).
        ignored |= key == "reduce_scatter" and facts.get(ZERO, "use_multi_rank_bucket_allreduce") is not False
        if facts.get(ZERO, key) is False and facts.may_share_data and not ignored:
            yield facts.problem((ZERO, key), f"is off: {cost}", hint="true")


@DEEPSPEED.rule(
    "deepspeed-no-prefetch",
    "warning",
    "Weights are not fetched ahead",
    "stage3_prefetch_bucket_size bounds what is gathered before it is used; with zero each layer's gather shows "
    "(deepspeed/runtime/zero/partitioned_param_coordinator.py).",
    _example('{"stage": 3, "stage3_prefetch_bucket_size": 0}'),
)
def _prefetch(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.stage == 3 and facts.may_share_data and facts.number(ZERO, "stage3_prefetch_bucket_size") == 0:
        yield facts.problem(
            (ZERO, "stage3_prefetch_bucket_size"),
            "is zero: every layer waits for its weights",
            hint="about 0.9 times the hidden size squared",
        )


@DEEPSPEED.rule(
    "deepspeed-pipeline-with-zero",
    "error",
    "The pipeline engine is to run with ZeRO 2 or 3",
    "PipelineEngine asserts a stage below 2 when it is made (deepspeed/runtime/pipe/engine.py): gradients of all "
    "microbatches are kept until the end of the step.",
    _example('{"stage": 2, "overlap_comm": true}', ', "pipeline": {"stages": 4}'),
)
def _pipeline(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.stage not in (2, 3):
        return
    if "pipeline" in facts.section():
        yield facts.problem(
            ("pipeline",),
            f"DeepSpeed's pipeline engine refuses ZeRO stage {facts.stage}",
            of_key=True,
            hint="stage 0 or 1",
        )
    elif (
        facts.arguments.whole("pipeline_model_parallel_size", "pipe_parallel_size") or 1
    ) > 1 and not facts.arguments.given("no_pipeline_parallel"):
        yield facts.problem(
            (ZERO, "stage"),
            f"DeepSpeed's pipeline engine, which the program's arguments ask for, refuses ZeRO stage {facts.stage}",
            hint="stage 0 or 1",
        )


@DEEPSPEED.rule(
    "deepspeed-four-bit-weights-whole",
    "warning",
    "The frozen 4-bit weights are not split",
    "bitsandbytes packs them into uint8, which ZeRO-3 leaves whole on every GPU (xtuner#88, DeepSpeed#5637); with "
    "bnb_4bit_quant_storage of a floating-point type it splits them (PEFT's guide to DeepSpeed).",
    "deepspeed train.py --load_in_4bit True --deepspeed ds.json\n" + _example('{"stage": 3}'),
)
def _four_bits(facts: DeepSpeedFacts) -> Iterator[Problem]:
    text = facts.arguments.text(*_FOUR_BITS)
    wanted = text == "4" or (text is not None and text.lower() in ("", "true", "1"))
    if facts.stage == 3 and wanted and not facts.arguments.given("bnb_4bit_quant_storage"):
        setting = facts.arguments.find(*_FOUR_BITS)
        yield facts.problem(
            (ZERO, "stage"),
            f"stage 3 does not split the 4-bit weights that "
            f"{setting.spelled if setting else 'the program'} loads: every GPU holds all of them",
            hint="bnb_4bit_quant_storage bfloat16, or stage 2",
        )


@DEEPSPEED.rule(
    "deepspeed-autotp-stage3",
    "note",
    "AutoTP with ZeRO-3 needs a recent release",
    "Supported in this release (deepspeed/runtime/engine.py, _configure_tensor_parallel_states); earlier ones "
    "stop there for stages above 2.",
    _example('{"stage": 3}', ', "tensor_parallel": {"autotp_size": 2}'),
)
def _autotp(facts: DeepSpeedFacts) -> Iterator[Problem]:
    if facts.stage == 3 and facts.tensor_parallel > 1:
        yield facts.problem(
            (ZERO, "stage"),
            f"stage 3 with AutoTP of {facts.tensor_parallel} works in this release; earlier ones refuse it",
            hint="deepspeed>=0.19, or stage 2",
        )

"""Rules about scripts of TRL, ms-swift, LLaMA-Factory and NeMo-RL: what they refuse, and what their users meet."""

from __future__ import annotations

from collections.abc import Iterator

from symconfig.errors import Problem
from symconfig.existing.launch.dialects import tuners
from symconfig.existing.recover.rl.values import LLAMAFACTORY, NEMO, SWIFT, TRL
from symconfig.existing.rules.rl import RlFacts, of

OF_GROUPS, OF_TRL, OF_SWIFT = of(TRL, SWIFT), of(TRL), of(SWIFT)
OF_FACTORY, OF_NEMO = of(LLAMAFACTORY), of(NEMO)
_STEPS = ("grpo", "rloo")
_FLASH = ("flash_attn", "flash_attention_2", "flash_attention_3", "flash_attention_4")
_ADAPTED = ("lora", "oft")  # what LLaMA-Factory trains beside weights in few bits
_BATCH_VARIANT = 4  # ranks of a layer from which on NeMo-RL's log-probabilities depend on the micro-batch
_GRPO = (
    "accelerate launch --num_machines 1 --num_processes 8 trl/scripts/grpo.py --model_name_or_path Qwen/Qwen3-0.6B "
    "--dataset_name trl-lib/tldr --use_vllm true --vllm_enable_sleep_mode true --num_generations 8 "
    "--per_device_train_batch_size 4 --max_prompt_length 512 --max_completion_length 512 "
)
_SWIFT = (
    "torchrun --nnodes 1 --nproc_per_node 8 swift/cli/sft.py --model Qwen/Qwen3-0.6B --dataset x --tuner_type full "
    "--torch_dtype bfloat16 --max_length 2048 "
)
_FACTORY = (
    "torchrun --nnodes 1 --nproc_per_node 8 src/train.py --stage sft --model_name_or_path Qwen/Qwen3-0.6B "
    "--finetuning_type full --cutoff_len 2048 --per_device_train_batch_size 1 "
)
_NEMO = (
    "python examples/run_grpo.py policy.model_name=Qwen/Qwen3-0.6B cluster.gpus_per_node=8 "
    "policy.dtensor_cfg.enabled=true policy.max_total_sequence_length=2048 data.max_input_seq_length=1024 "
)


def _steps(facts: RlFacts) -> bool:
    """Say whether a script has a step of reinforcement learning."""
    started = tuners.program(facts.reading)
    return started is not None and started.method in _STEPS


@OF_GROUPS.rule(
    "error",
    "What is generated at once does not divide into groups",
    "A prompt's num_generations responses are generated together, so they divide per_device_train_batch_size x "
    'processes x steps_per_generation; TRL stops with "generation_batch_size must be divisible by num_generations" '
    "(trl/trainer/grpo_config.py; trl#2858, trl#3061, open-r1#249), and ms-swift, which builds on it, too. The batch "
    "counts responses, not prompts (trl#2876).",
    _GRPO + "--num_generations 5",
)
def groups_not_whole(facts: RlFacts) -> Iterator[Problem]:
    values, started = facts.values, tuners.program(facts.reading)
    if facts.gpus is None or started is None or started.megatron or not _steps(facts):
        return
    samples = values.whole("num_generations")
    each, steps = values.whole("per_device_train_batch_size"), values.whole("steps_per_generation")
    steps = steps or values.whole("gradient_accumulation_steps") or 1
    sharing = values.whole("sequence_parallel_size") or 1
    if samples is None or each is None or facts.gpus % sharing:
        return
    generated = values.whole("generation_batch_size") or each * steps * facts.gpus // sharing
    if generated % samples:
        got = f"{samples} of {generated:,} responses"
        yield facts.problem("num_generations", "does not divide what is generated at once", got)


@OF_TRL.rule(
    "error",
    "An advantage over a prompt's responses needs several",
    "TRL refuses fewer than 2 num_generations: the advantage of a response is against the others of its prompt "
    "(trl/trainer/grpo_config.py; trl#3199).",
    _GRPO + "--num_generations 1",
)
def one_response_of_a_group(facts: RlFacts) -> Iterator[Problem]:
    samples = facts.values.whole("num_generations")
    if samples is not None and samples < 2 and _steps(facts):
        yield facts.problem("num_generations", "leaves nothing to compare a response with", samples, "2 or more")


@OF_GROUPS.rule(
    "note",
    "The engine keeps its share of the memory while others train",
    "An engine on the same GPUs gives weights and keys back only if it sleeps: vllm_enable_sleep_mode of TRL "
    "(trl#3968, trl#4296), sleep_level of ms-swift. Else the update has what the engine's share leaves, for which "
    "people lower vllm_gpu_memory_utilization (trl#2927).",
    _GRPO + "--vllm_enable_sleep_mode false",
)
def engine_awake_while_training(facts: RlFacts) -> Iterator[Problem]:
    """Yield the switch that lets the engine sleep, where it is off and the engine runs on the trainer's GPUs."""
    values = facts.values
    apart = values.text("vllm_mode") == "server" or values.given("vllm_server_host")
    sleeps = values.switch("vllm_enable_sleep_mode") or (values.number("sleep_level") or 0) > 0
    if _steps(facts) and values.switch("use_vllm") and not apart and not sleeps:
        key = "sleep_level" if facts.trainer is SWIFT else "vllm_enable_sleep_mode"
        share = values.number("vllm_gpu_memory_utilization")
        yield facts.problem(key, "is off, and the engine keeps its share of each GPU", share)


@OF_SWIFT.rule(
    "error",
    "Packed sequences need flash attention",
    'ms-swift stops with "The packing feature requires a flash attention implementation", for padding_free too '
    "(swift/arguments/sft_args.py, _check_padding_free; ms-swift#5690).",
    _SWIFT + "--packing true --attn_impl eager",
)
def packed_without_flash_attention(facts: RlFacts) -> Iterator[Problem]:
    values, started = facts.values, tuners.program(facts.reading)
    kernel = values.text("attn_implementation")
    on = next((name for name in ("packing", "padding_free") if values.switch(name)), None)
    if on is not None and started is not None and not started.megatron and kernel not in _FLASH:
        yield facts.problem(on, "needs flash attention", kernel, f"attn_impl: {_FLASH[0]}")


@OF_FACTORY.rule(
    "error",
    "Weights in few bits are trained by adapters alone",
    'LLaMA-Factory stops with "Quantization is only compatible with the LoRA or OFT method" (hparams/parser.py).',
    _FACTORY + "--bf16 true --quantization_bit 4",
)
def few_bits_without_adapters(facts: RlFacts) -> Iterator[Problem]:
    values = facts.values
    bits, kind = values.text("quantization_bit"), values.text("finetuning_type") or "lora"
    if bits is not None and kind not in _ADAPTED:
        yield facts.problem("quantization_bit", f"is with finetuning_type {kind}", bits, " or ".join(_ADAPTED))


@OF_NEMO.rule(
    "error",
    "Workers of Megatron-Core and of DTensor at once",
    'NeMo-RL stops with "Configure either Megatron (policy.megatron_cfg.enabled=true) or DTensor '
    '(policy.dtensor_cfg.enabled=true), not both" (nemo_rl/models/policy/lm_policy.py); its examples have DTensor on, '
    "which a file that inherits one has to turn off.",
    _NEMO + "policy.megatron_cfg.enabled=true",
)
def two_kinds_of_workers(facts: RlFacts) -> Iterator[Problem]:
    yield from _one_of(facts, "policy.dtensor_cfg.enabled", "policy.megatron_cfg.enabled")


@OF_NEMO.rule(
    "error",
    "Micro-batches are packed and dynamic at once",
    'NeMo-RL asserts "Dynamic Batching is exclusive of Sequence Packing" (nemo_rl/models/policy/lm_policy.py).',
    _NEMO + "policy.sequence_packing.enabled=true policy.dynamic_batching.enabled=true",
)
def packed_and_dynamic(facts: RlFacts) -> Iterator[Problem]:
    yield from _one_of(facts, "policy.dynamic_batching.enabled", "policy.sequence_packing.enabled")


def _one_of(facts: RlFacts, key: str, other: str) -> Iterator[Problem]:
    """Yield the problem of two switches that are both on."""
    if facts.values.switch(key) and facts.values.switch(other):
        yield facts.problem(key, f"is on beside {other}", need="one of them")


@OF_NEMO.rule(
    "error",
    "Log-probabilities are computed in other micro-batches than those that train",
    "From 4 ranks of tensor parallelism on, results depend on the micro-batch, and NeMo-RL asserts that "
    "train_micro_batch_size and logprob_batch_size are the same, unless NRL_IGNORE_TP_ACCURACY_CHECK is set "
    "(nemo_rl/models/policy/lm_policy.py; docs/guides/dtensor-tp-accuracy.md).",
    _NEMO + "policy.dtensor_cfg.tensor_parallel_size=4 policy.logprob_batch_size=2",
)
def micro_batches_differ_under_tp(facts: RlFacts) -> Iterator[Problem]:
    values, key = facts.values, "policy.logprob_batch_size"
    megatron = values.switch("policy.megatron_cfg.enabled")
    degree = "megatron_cfg.tensor_model_parallel_size" if megatron else "dtensor_cfg.tensor_parallel_size"
    tp, read, micro = (values.whole(name) for name in (f"policy.{degree}", key, "policy.train_micro_batch_size"))
    reading = facts.reading  # a configuration by itself has no environment
    spared = reading.program is None or "NRL_IGNORE_TP_ACCURACY_CHECK" in reading.environment
    spared |= values.switch("loss_fn.force_on_policy_ratio")
    if values.given(key) and not spared and (tp or 1) >= _BATCH_VARIANT and read != micro:
        yield facts.problem(key, f"is not train_micro_batch_size, with {tp} ranks of a layer", read, micro)

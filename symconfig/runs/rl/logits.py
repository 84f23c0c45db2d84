"""Logits at the peaks of a phase: bytes that a program has on a GPU for each of them, where the loss is made."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from symconfig.descriptor.tuning import Loss
from symconfig.graph.implementation import LossKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitBytes:
    """Bytes per logit of a micro-batch at the peak.

    forward: log-probabilities without gradients; entropy: with the entropy. update: an update; entropy_update: with the
    entropy in the loss. added: whether these two are added to what the planner's own loss keeps, or are the total.
    kept: by an update's forward while another model is read. loss: kernel of the planner's loss that they refer to;
    None: the framework's.

    For logits computed in tiles: tile: (tokens, words) at the same time, in 16 bits. scored: bytes per channel of a
    token kept by the head; in its backward by_channel more of these, and by_weight per weight of a trained head.
    """

    forward: float
    update: float
    entropy: float = 0.0
    entropy_update: float = 0.0
    added: bool = True
    kept: float = 0.0
    loss: LossKernel | None = None
    tile: tuple[int, int] = (0, 0)
    scored: float = 0.0
    by_channel: float = 0.0
    by_weight: float = 0.0


# verl 0.9.1 on Megatron-Core (workers/engine/megatron/transformer_impl.py, utils/megatron/tensor_parallel.py). 16-bit
# logits and their fp32 copy (Float16Module) are there at once: 6. From then on the copy serves the loss in place. For
# the entropy it is copied, and its softmax is another one: 12, all of which a backward reads; of these the planner's
# loss has the fp32 copy. Without the entropy the division by the temperature has a second gradient beside that.
VERL = LogitBytes(forward=6.0, entropy=12.0, update=4.0, entropy_update=8.0)
# verl 0.9.1 on FSDP (workers/engine/fsdp/transformer_impl.py, utils/torch_functional.py): flash-attn's cross-entropy
# overwrites 16-bit logits with their gradient: 2, which the planner's loss has. With the entropy, compiled to one
# kernel, gradients of both are beside the logits: 6. A temperature other than one makes a quotient beside the logits,
# and its gradient has another beside it. Measured on an H100: 2, 4 and 6 (tests/runs/rl/test_measured.py).
VERL_FSDP = LogitBytes(forward=2.0, entropy=2.0, update=0.0, entropy_update=4.0, loss=LossKernel.IN_PLACE)
VERL_FSDP_SCALED = replace(VERL_FSDP, forward=4.0, entropy=4.0, update=2.0)
# slime, August 2026 (utils/ppo_utils.py, _VocabParallelLogProbEntropy): the fp32 logits and their softmax, of which
# the entropy is made with no copy; in chunks the logits alone are whole, beside the 16 bits that they are copied from.
SLIME = LogitBytes(forward=8.0, entropy=8.0, update=4.0, entropy_update=8.0)
SLIME_CHUNKED = LogitBytes(forward=6.0, entropy=6.0, update=4.0, entropy_update=8.0)
# OpenRLHF 0.11.2 (models/actor.py, models/utils.py): 16-bit logits and their fp32 copy are there at once, 6. The copy
# stays, a variable holds it; its gradient by flash-attn's cross-entropy is another, of which a 16-bit one is made: 10,
# and the planner's loss has the copy. The entropy, where the loss has it, is compiled to one kernel with one gradient.
OPENRLHF = LogitBytes(
    forward=6.0, entropy=6.0, update=6.0, entropy_update=10.0, kept=4.0, loss=LossKernel.WIDE_IN_PLACE
)
# LLaMA-Factory 0.9.5 on Transformers (train/dpo/trainer.py, train/trainer_utils.py: get_batch_logps): logits are copied
# into fp32, and so is their log-softmax: 8. Both of the policy's are there while the reference is read. In the backward
# the log-softmax has two gradients beside it, 12; the planner's loss has 6 of these.
PAIRS = LogitBytes(forward=8.0, kept=8.0, update=6.0)
# Its KTO (train/kto/trainer.py): the logits of single answers are copied once more, by their labels, beside the
# log-softmax while the reference is read; that has its own beside those of its KL term, which the model's has not.
ANSWERS = replace(PAIRS, forward=12.0)
# Its model of rewards (train/rm/trainer.py; TRL's AutoModelForCausalLMWithValueHead): logits are made and copied into
# fp32, and no loss reads them.
BESIDE_SCORES: Mapping[str, LogitBytes] = {"llamafactory": LogitBytes(forward=6.0, update=6.0, added=False)}
# OpenRLHF's pairs (trainer/dpo_trainer.py): no variable holds the logits while their gradient is copied.
OPENRLHF_PAIRS = replace(OPENRLHF, update=4.0)
# TRL 1.16 (trainer/utils.py, add_fused_lm_head; kernels/chunked_logprob.py): logits in tiles of 4096 tokens and 32768
# of the vocabulary, made again in the backward. Hidden states of what is scored are copied; their gradient, and that
# of a trained head, is in fp32, and copied into 16 bits at the end.
TRL = LogitBytes(
    forward=0.0,
    update=0.0,
    added=False,
    loss=LossKernel.TILED,
    tile=(4096, 32768),
    scored=2.0,
    by_channel=4.0 + 2.0,
    by_weight=4.0 + 2.0,
)
# ms-swift 4.6.0 on Megatron-Core (megatron/trainers/dpo_trainer.py): the model itself makes the loss of each token, as
# in pre-training; the reference, which is read first, has 16-bit logits and their fp32 copy.
SWIFT_PAIRS = LogitBytes(forward=6.0, update=0.0)
# ms-swift 4.6.0 on Transformers (rlhf_trainers/rlhf_mixin.py, TRL's selective_log_softmax): 16-bit logits and, row by
# row, their log-softmax, which alone is kept; its gradient and the logits' are two more.
SWIFT_HF_PAIRS = LogitBytes(forward=4.0, update=6.0, added=False, kept=2.0)
# NeMo-RL 0.7.0 on Megatron-Core (nemo_rl/distributed/model_utils.py, DistributedLogprob): the fp32 logits, those less
# their maximum and an exponential of these, which a backward has as the softmax, its gradient and the sum of others'.
NEMO = LogitBytes(forward=12.0, entropy=12.0, update=8.0, entropy_update=8.0)
# On FSDP (models/automodel/train.py): fp32 logits and their log-softmax; a backward as that of pairs.
NEMO_DTENSOR = LogitBytes(forward=8.0, entropy=8.0, update=2.0, entropy_update=2.0)
# Of an actor that is planned for a target; VERL where nothing else is known. And of preferences; LLaMA-Factory's where
# nothing else is.
BY_TARGET: Mapping[str, LogitBytes] = {
    "verl": VERL,
    "verl-fsdp": VERL_FSDP,
    "slime": SLIME,
    "openrlhf": OPENRLHF,
    "trl": TRL,
    "ms-swift-deepspeed": SWIFT_HF_PAIRS,
    "nemo-rl": NEMO,
}
_OF_LOSSES: Mapping[str, LogitBytes] = {
    "openrlhf": OPENRLHF_PAIRS,
    "trl": TRL,
    "ms-swift": SWIFT_PAIRS,
    "ms-swift-deepspeed": SWIFT_HF_PAIRS,
}
# TRL 1.16's trainers without a reference (experimental/{cpo,orpo}/) have whole logits, as in ms-swift, which runs them.
# On GPUs a kernel of TRL's keeps no log-softmax, so that they take no more.
_WITHOUT_REFERENCE: Mapping[str, LogitBytes] = {"trl": SWIFT_HF_PAIRS}
PLAIN = LogitBytes(forward=0.0, update=0.0)  # what the planner counts
FUSED = LogitBytes(forward=0.0, update=0.0, added=False, loss=LossKernel.TILED)  # logits are never whole


def of_loss(means: Loss, target: str) -> LogitBytes:
    """Return the bytes per logit of a preference loss in a target's program. Losses on scores: BESIDE_SCORES, else
    PLAIN; losses without a reference: _WITHOUT_REFERENCE, if the target is there; else _OF_LOSSES, or without the
    target there PAIRS for losses on pairs, ANSWERS for single answers.
    """
    if means.scores:
        return BESIDE_SCORES.get(target, PLAIN)
    if not means.reference and target in _WITHOUT_REFERENCE:
        return _WITHOUT_REFERENCE[target]
    return _OF_LOSSES.get(target, PAIRS if means.sequences > 1 else ANSWERS)

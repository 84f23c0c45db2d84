"""Memory by phase: live bytes of tiny actors that run what the workers run, against the prediction."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from symconfig.descriptor.model import ModelDescriptor
from symconfig.runs.rl.logits import (
    NEMO,
    NEMO_DTENSOR,
    OPENRLHF,
    OPENRLHF_PAIRS,
    PAIRS,
    SWIFT_HF_PAIRS,
    VERL,
    LogitBytes,
)
from symconfig.runs.rl.trained import GRADIENTS, STATES, WEIGHTS, Trained
from symconfig.solve.prospect import Prospect
from symconfig.verify.rank_states import with_local_layers
from tests.runs.rl.support import LAYERS, TINY, TOKENS, head_and_loss
from tests.sample_plans import sample_plan

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
pytest.importorskip("megatron.core")
from tests.runs.rl.memory_worker import Live  # noqa: E402

WORKER = Path(__file__).with_name("memory_worker.py")
PATCHES = Path("symconfig/verify/runners/megatron_patches.py").resolve()
CONFIG = {
    "num_layers": LAYERS, "hidden_size": 64, "ffn_hidden_size": 96, "num_attention_heads": 4, "num_query_groups": 2,
    "kv_channels": 16, "normalization": "RMSNorm", "add_bias_linear": False, "gated_linear_unit": True,
    "bias_activation_fusion": True, "attention_softmax_in_fp32": False, "attention_dropout": 0.0, "hidden_dropout": 0.0,
    "use_cpu_initialization": True, "gradient_accumulation_fusion": False, "persist_layer_norm": False,
}  # fmt: skip
# Of the head beside logits: what the loss keeps of each token (a target of 8 bytes, its logarithm, whether it is of
# another rank), less the tokens, which are the batch's here. The masks, of a byte for each score, are the batch's, too.
TOKEN_BYTES = 8 + 4 + 1 - 8


@dataclass(frozen=True)
class Local(Trained):
    """The actor with Megatron-Core's own layers, as a CPU runs them: no library has a workspace."""

    @cached_property
    def prospect(self) -> Prospect:
        prospect = with_local_layers(self.plan)
        framework = replace(prospect.request.framework, torch_workspace=0.0, engine=False)
        return replace(prospect, request=replace(prospect.request, framework=framework))

    @property
    def _own(self) -> dict[str, float]:
        """The plan's candidate is of another model."""
        return {name: float(part.max()) for name, part in self.parts.cost.memory.items()}

    def passing(self, entropy: bool = False) -> float:
        """Bytes of an update's activations and loss; the batch has the masks, and the loss some numbers of a token."""
        states = sum(float(self.parts.cost.memory[name].max()) for name in (WEIGHTS, GRADIENTS, STATES))
        return self.peak_bytes(entropy) - states + self.beside

    @property
    def beside(self) -> int:
        return TOKEN_BYTES * TOKENS - LAYERS * TOKENS**2


def actor(vocabulary: int) -> Local:
    model = ModelDescriptor.model_validate_json(json.dumps({**TINY, "vocab_size": vocabulary}))
    plan = sample_plan(model, tp=1, pp=1, dp=1, seq_length=TOKENS, global_batch=1)
    return Local(plan, plan.best, 1.0, VERL)


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, dict[str, int]]]:
    """Bytes by vocabulary and phase: one that makes logits the most of a phase, one that leaves the layers most."""
    asked = {"config": CONFIG, "vocabularies": (4096, 128), "tokens": TOKENS, "patches": str(PATCHES)}
    folder = tmp_path_factory.mktemp("memory")
    request, answer = folder / "request.json", folder / "answer.json"
    request.write_text(json.dumps(asked))
    ended = subprocess.run(
        [sys.executable, str(WORKER), str(request), str(answer)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return {int(size): phases for size, phases in json.loads(answer.read_text()).items()}


def test_an_update_keeps_what_is_predicted_to_the_byte(counted: dict[int, Any]) -> None:
    own = actor(4096)
    memory = {name: float(part.max()) for name, part in own.parts.cost.memory.items()}
    kept = memory["activations"] + memory["head and loss"] + own.beside
    assert counted[4096]["update"]["kept"] == kept
    # The entropy keeps the softmax and another copy of the logits, and of each token its mean logit and itself.
    assert counted[4096]["update with entropy"]["kept"] == kept + 8 * own.logit_count + 8 * TOKENS


@pytest.mark.parametrize(("phase", "entropy"), [("update", False), ("update with entropy", True)])
def test_an_update_takes_what_is_predicted(phase: str, entropy: bool, counted: dict[int, Any]) -> None:
    """To a few numbers of each token: those that a loss has freed, or has beside, when its backward is fullest."""
    assert counted[4096][phase]["peak"] == pytest.approx(actor(4096).passing(entropy), abs=24.1 * TOKENS)


def test_log_probabilities_take_what_is_predicted(counted: dict[int, Any]) -> None:
    """The reference to the byte; beside the entropy there are five numbers of each token."""
    own = actor(4096)
    assert counted[4096]["reference"]["peak"] == own.forward_bytes()
    assert 0 <= counted[4096]["log-probabilities"]["peak"] - own.forward_bytes(entropy=True) <= 20 * TOKENS


@pytest.mark.parametrize("phase", ["log-probabilities", "reference"])
def test_a_forward_through_layers_takes_at_most_what_they_would_keep(phase: str, counted: dict[int, Any]) -> None:
    predicted = actor(128).forward_bytes(entropy=phase == "log-probabilities")
    assert 0.5 * predicted < counted[128][phase]["peak"] <= predicted


class CrossEntropy(torch.autograd.Function):
    """The loss of labels[N] by logits[N, V] as flash-attn's kernel makes it: it keeps the logits, and its gradient is
    another tensor (ops/triton/cross_entropy.py)."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        ctx.save_for_backward(logits, labels)
        total = torch.stack([row.exp().sum() for row in logits]).log()
        return total - logits.gather(1, labels[:, None]).squeeze(1)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        logits, _ = ctx.saved_tensors
        return torch.empty_like(logits), None


def llamafactory(model: Any, tokens: Any) -> tuple[Any, Any]:
    logits = model(input_ids=tokens, use_cache=False).logits.float()
    chosen = logits[:, :-1].log_softmax(-1).gather(2, tokens[:, 1:, None]).squeeze(2)
    return chosen.sum(-1), logits


def openrlhf(model: Any, tokens: Any) -> tuple[Any, None]:
    output = model(input_ids=tokens, use_cache=False)
    output["logits"] = output["logits"].float()
    losses = CrossEntropy.apply(output["logits"].flatten(0, 1), tokens.roll(-1, 1).flatten())
    return -losses.view(tokens.shape)[:, :-1].sum(-1), None


def pairs(vocabulary: int, log_probabilities: Callable[[Any, Any], tuple[Any, Any]] = llamafactory) -> dict[str, int]:
    """Live bytes of a step on one pair, as a trainer runs it on Transformers: when the policy's forward ends, at the
    reference's peak beside it, and at the backward's."""

    config = transformers.LlamaConfig(
        hidden_size=64, intermediate_size=96, num_hidden_layers=LAYERS, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=vocabulary,
    )  # fmt: skip
    policy, reference = (transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16) for _ in range(2))
    tokens = torch.randint(0, vocabulary, (2, TOKENS))
    live = Live([tokens, *(each for model in (policy, reference) for each in (*model.parameters(), *model.buffers()))])
    found = {}
    with live:
        own, logits = log_probabilities(policy, tokens)
        found["kept"], live.peak = live.now, 0
        with torch.no_grad():
            other = log_probabilities(reference, tokens)[0]
        found["reference"], live.peak = live.peak, 0
        ratio = own - other
        del own, other, logits  # its logits are reported, and then given up
        loss = -torch.nn.functional.logsigmoid(0.1 * (ratio[0] - ratio[1]))
        del ratio
        loss.backward()
        found["update"] = live.peak
    return found


def test_pairs_take_what_is_predicted_of_each_logit() -> None:
    """By what more logits add. The log-softmax and its gradients are of all tokens of a sequence but the last."""
    few, many = pairs(1024), pairs(3072)
    more = 2 * TOKENS * 2048
    last = (TOKENS - 1) / TOKENS
    each = {name: (many[name] - few[name]) / more for name in few}
    assert each["kept"] == pytest.approx(PAIRS.kept / 2 * (1 + last))
    assert each["reference"] == pytest.approx((PAIRS.kept + PAIRS.forward) / 2 * (1 + last))
    planned = [head_and_loss(size) for size in (1024, 3072)]
    own = (planned[1] - planned[0]) / (TOKENS * 2048)
    assert each["update"] == pytest.approx((own + PAIRS.update) * last)


def test_openrlhf_takes_what_is_predicted_of_each_logit() -> None:
    few, many = pairs(1024, openrlhf), pairs(3072, openrlhf)
    each = {name: (many[name] - few[name]) / (2 * TOKENS * 2048) for name in few}
    assert each["kept"] == pytest.approx(OPENRLHF.kept)
    assert each["reference"] == pytest.approx(OPENRLHF.kept + OPENRLHF.forward)
    planned = [head_and_loss(size, OPENRLHF_PAIRS) for size in (1024, 3072)]
    own = (planned[1] - planned[0]) / (TOKENS * 2048)
    assert each["update"] == pytest.approx(own + OPENRLHF_PAIRS.update)


def swift(model: Any, tokens: Any) -> tuple[Any, None]:
    row = tokens.flatten()  # without padding, all sequences are in one
    (logits,) = model(input_ids=row[None], use_cache=False).logits
    return logits.log_softmax(-1).gather(-1, row.roll(-1)[:, None]).view(tokens.shape).sum(-1), None


def test_ms_swift_takes_what_is_predicted_of_each_logit() -> None:
    """Of padded sequences, one after the other has its log-softmax and gradients beside all logits: they take less."""
    few, many = pairs(1024, swift), pairs(3072, swift)
    each = {name: (many[name] - few[name]) / (2 * TOKENS * 2048) for name in few}
    assert each["kept"] == pytest.approx(SWIFT_HF_PAIRS.kept)
    assert each["reference"] == pytest.approx(SWIFT_HF_PAIRS.kept + SWIFT_HF_PAIRS.forward)
    assert each["update"] == pytest.approx(SWIFT_HF_PAIRS.update)


def test_transformers_own_loss_has_no_more_than_deepspeeds_plan_counts() -> None:
    """Where the loss alone is taken of the output: the log-softmax and two gradients. The plan has the 16-bit logits,
    too, whose block the allocator keeps."""

    def peak(vocabulary: int) -> int:
        config = transformers.LlamaConfig(
            **{name: TINY[name] for name in ("hidden_size", "intermediate_size", "num_attention_heads")},
            num_hidden_layers=LAYERS,
            vocab_size=vocabulary,
        )
        model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        tokens = torch.randint(0, vocabulary, (1, TOKENS))
        live = Live([tokens, *model.parameters(), *model.buffers()])
        with live:
            model(input_ids=tokens, labels=tokens, shift_labels=tokens, use_cache=False).loss.backward()
        return live.peak

    each = (peak(3072) - peak(1024)) / (TOKENS * 2048)
    assert each == pytest.approx(12.0, abs=0.02)
    assert (head_and_loss(3072) - head_and_loss(1024)) / (TOKENS * 2048) + 8.0 == pytest.approx(each + 2.0, abs=0.02)


def without_reference(model: Any, tokens: Any) -> tuple[Any, None]:
    """Return the log-probabilities of padded pairs with what TRL's CPO and ORPO add: the chosen answers' loss."""
    logits = model(input_ids=tokens, use_cache=False).logits
    chosen = logits[:1, :-1].contiguous().flatten(0, 1)
    added = torch.nn.functional.cross_entropy(chosen, tokens[0, 1:])
    del chosen
    rows = [row.log_softmax(-1).gather(-1, to[:, None]) for row, to in zip(logits[:, :-1], tokens[:, 1:], strict=True)]
    return torch.stack(rows).squeeze(2).sum(-1) + torch.stack((added, -added)), None


def test_losses_without_a_reference_take_no_more_than_pairs_in_one_row() -> None:
    """The copy of chosen answers' logits takes what rows one after the other save: ms-swift pads these pairs."""
    few, many = pairs(1024, without_reference), pairs(3072, without_reference)
    update = (many["update"] - few["update"]) / (2 * TOKENS * 2048)
    assert update == pytest.approx(SWIFT_HF_PAIRS.update, rel=0.03)


OF_LOGITS, FEATURES = 512, 2
# Of the planner's own loss: the fp32 copy of Megatron-LM's, and of PyTorch's cross-entropy the 16-bit logits, their
# fp32 copy and its gradient (`graph.implementation.Loss`; test_memory.py counts the latter).
OWN = {"megatron": 4.0, "fsdp": 10.0}


class Distributed(torch.autograd.Function):
    """Log-probabilities of one rank of a vocabulary, step by step as NeMo-RL's DistributedLogprob makes them."""

    @staticmethod
    def forward(ctx: Any, logits: Any, labels: Any) -> Any:
        logits = logits.to(torch.float32)
        less = logits - logits.amax(-1, keepdim=True)
        made = less - less.exp().sum(-1, keepdim=True).log()
        del less
        ctx.save_for_backward(made.exp(), labels)
        return made.gather(-1, labels)

    @staticmethod
    def backward(ctx: Any, gradient: Any) -> Any:
        shares, labels = ctx.saved_tensors
        return shares.neg().mul_(gradient).scatter_add_(-1, labels, gradient), None


def by_megatron(logits: Any, labels: Any) -> Any:
    return Distributed.apply(logits, labels)


def by_fsdp(logits: Any, labels: Any) -> Any:
    return logits.log_softmax(-1).gather(-1, labels)


def most(way: Callable[[Any, Any], Any], vocabulary: int, update: bool) -> int:
    """Count the live bytes at the peak of a head's forward, and of its backward if it is an update."""
    weight = torch.randn(vocabulary, FEATURES, dtype=torch.bfloat16, requires_grad=update)
    hidden = torch.randn(1, OF_LOGITS, FEATURES, dtype=torch.bfloat16, requires_grad=update)
    labels = torch.randint(0, vocabulary, (1, OF_LOGITS, 1))
    live = Live([weight, hidden, labels])
    with live, torch.set_grad_enabled(update):
        logits = (hidden @ weight.T).float()
        loss = way(logits, labels).mean()
        del logits
        if update:
            loss.backward()
    return live.peak


@pytest.mark.parametrize(
    ("way", "predicted", "own"),
    [(by_megatron, NEMO, OWN["megatron"]), (by_fsdp, NEMO_DTENSOR, OWN["fsdp"])],
    ids=["megatron", "fsdp"],
)
def test_nemo_rl_has_so_many_bytes_of_each_logit(
    way: Callable[[Any, Any], Any], predicted: LogitBytes, own: float
) -> None:
    each = {
        update: (most(way, 3072, update) - most(way, 1024, update)) / (OF_LOGITS * 2048) for update in (False, True)
    }
    assert each[False] == pytest.approx(predicted.forward, rel=0.01)
    assert each[True] == pytest.approx(own + predicted.update, rel=0.01)

"""A head that gives a number of each token in place of logits, against Transformers' own classes on a CPU."""

from __future__ import annotations

import gc
from typing import Any

import pytest

from symconfig.descriptor.load import load_model
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError
from symconfig.graph.model import parameters
from tests.sample_plans import sample_plan
from tests.solve.naive import tiny

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
from symconfig.runs.rl.logits import PLAIN  # noqa: E402
from symconfig.runs.rl.trained import Trained  # noqa: E402
from tests.runs.rl.memory_worker import Live  # noqa: E402

TOKENS, LAYERS = 64, 2
SHAPE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 4096, "tie_word_embeddings": False,
}  # fmt: skip


def model(**changed: Any) -> ModelDescriptor:
    return tiny(**SHAPE, head_dim=16, **changed).of_values


def built(name: str) -> Any:
    config = transformers.LlamaConfig(**SHAPE, num_labels=1, pad_token_id=0)
    return getattr(transformers, name).from_config(config, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("name", "bias"), [("AutoModelForTokenClassification", True), ("AutoModelForSequenceClassification", False)]
)
def test_a_model_of_values_has_the_parameters_of_transformers_class(name: str, bias: bool) -> None:
    own = model().model_copy(update={"lm_head_bias": bias})
    assert parameters(own).total == sum(weight.numel() for weight in built(name).parameters())


def test_a_model_of_values_keeps_no_logits() -> None:
    """What the classes of logits and of values keep for the backward of a mean of squares in fp32 differs by the fp32
    logits, less a few numbers of each token; the planner's two models differ by no less, since its loss is another."""
    tokens = torch.randint(1, SHAPE["vocab_size"], (1, TOKENS))

    def kept(name: str) -> int:
        one = built(name).eval()  # a dropout before the head is Transformers' own
        live = Live([tokens, *one.parameters(), *one.buffers()])
        with live:
            loss = one(input_ids=tokens, use_cache=False).logits.float().square().mean()
            gc.collect()
            found = live.now
            del loss
        return found

    def planned(of: ModelDescriptor) -> dict[str, float]:
        plan = sample_plan(of, backend="deepspeed", tp=1, pp=1, dp=1, seq_length=TOKENS, global_batch=1)
        memory = Trained(plan, plan.best, 1.0, PLAIN).parts.cost.memory
        return {name: float(part.max()) for name, part in memory.items()}

    some, whole = 16 * TOKENS, SHAPE["vocab_size"] * TOKENS
    saved = kept("AutoModelForCausalLM") - kept("AutoModelForTokenClassification")
    assert saved == pytest.approx(4 * whole, abs=some)
    logits, values = (planned(each) for each in (tiny(**SHAPE, head_dim=16), model()))
    assert values["activations"] == logits["activations"]
    assert logits["head and loss"] - values["head and loss"] >= saved - some  # the rest is the final norm's
    fewer = parameters(tiny(**SHAPE, head_dim=16)).total - parameters(model()).total
    assert fewer == (SHAPE["vocab_size"] - 1) * SHAPE["hidden_size"]
    assert logits["optimizer state"] - values["optimizer state"] >= 8 * fewer


def test_what_makes_values_of_a_zoo_model_takes_away_what_makes_logits() -> None:
    for name in ("qwen3-8b", "llama3.2-1b", "deepseek-v3"):
        whole = load_model(name)
        own = whole.of_values
        head = whole.hidden_size * whole.vocab_size * (not whole.tie_word_embeddings)
        assert parameters(own).total == parameters(whole, with_mtp=False).total - head + whole.hidden_size
        assert own.of_values is own


@pytest.mark.parametrize(
    ("changed", "wrong"),
    [({"tie_word_embeddings": True}, "tie_word_embeddings"), ({"num_nextn_predict_layers": 1}, "num_nextn")],
)
def test_logits_besides_are_refused(changed: dict[str, Any], wrong: str) -> None:
    with pytest.raises((ValueError, InputError), match=f"num_labels and {wrong}"):
        tiny(**SHAPE | changed, num_labels=1)

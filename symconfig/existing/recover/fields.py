"""Fields of a model descriptor as options set them, with where each comes from, and the descriptor that they make."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from symconfig.descriptor.meaning import flat, meaning
from symconfig.descriptor.model import ModelDescriptor
from symconfig.errors import InputError, Problem
from symconfig.existing.recover import zoo
from symconfig.existing.recover.namespace import Namespace
from symconfig.existing.recover.run import Assumed
from symconfig.format import nested
from symconfig.formats.links import value_of

_SHAPE = ("num_layers", "hidden_size", "num_attention_heads")
# How a model is trained rather than which it is: the options say it, whatever the named model has.
_TRAINING = frozenset(
    {"attention_dropout", "hidden_dropout", "initializer_range", "norm_eps", "experts.router_aux_loss_coef"}
)
_NEEDED = {"num_hidden_layers": "layers", "hidden_size": "hidden size", "num_attention_heads": "attention heads"}


class Fields:
    """Fields of a model descriptor as the options set them, by dotted name: "hidden_size", "experts.num_experts".

    `base` is the user's model. `whole`: the options give a shape of their own, or there is no base: then the parser's
    defaults fill fields left open, otherwise `base` does.
    """

    def __init__(self, args: Namespace, base: ModelDescriptor | None = None) -> None:
        self.args = args
        self.base = base
        self.whole = base is None or all(args.given(dest) for dest in _SHAPE)
        self.values: dict[str, object] = {}
        self.sources: dict[str, tuple[str, ...]] = {}
        self.problems: list[Problem] = []
        self.assumed: list[Assumed] = []
        self.parts: tuple[int, ...] = ()  # Megatron-LM's layers of each of the model's, if a pattern says

    def put(self, field: str, value: object, *dests: str) -> None:
        """Record the arguments `dests` that a field comes from, and its value unless that is None."""
        self.sources[field] = dests
        if value is not None:
            self.values[field] = value

    def refuse(
        self, what: str, *dests: str, got: object = None, need: str | None = None, hint: str | None = None
    ) -> None:
        """Append the problem "cannot be predicted: ..." about `dests` to `problems`; raises nothing."""
        self.problems.append(self.args.problem(f"cannot be predicted: {what}", *dests, got=got, need=need, hint=hint))

    def assume(self, what: str, value: object, why: str, *dests: str) -> None:
        self.assumed.append(Assumed(what, str(value), why, self.args.place(*dests)))

    def holds(self, *dests: str) -> bool:
        """Return whether the values of `dests` count: always if defaults count (`whole`), else only if any is given."""
        return self.whole or self.args.given(*dests)

    def of_options(self, field: str) -> bool:
        """Return whether the options decide the field rather than `base`: whether the arguments it comes from count."""
        return self.holds(*self.sources.get(field, ()))

    @property
    def layers(self) -> int:
        """Return the model's number of layers: the pattern's, else --num-layers, else `base`'s, else 0."""
        if self.parts:
            return len(self.parts)
        return self.args.integer("num_layers") or (self.base.num_hidden_layers if self.base is not None else 0)

    @property
    def counted(self) -> int:
        """Return the layers as Megatron-LM counts them: more if a pattern has a mixer and its MLP as one each."""
        return sum(self.parts) or self.layers

    def own(self, values: tuple[bool, ...]) -> tuple[bool, ...]:
        """Return, of one value per layer of Megatron-LM, each model layer's first; all of them without a pattern."""
        if not self.parts:
            return values
        return tuple(values[sum(self.parts[:place])] for place in range(len(self.parts)))

    def get(self, field: str) -> Any:
        """Return a field's value from the options if they decide it, else from `base`; None if neither has one."""
        return self.values.get(field) if self.of_options(field) else value_of(self.base, field)

    @property
    def latent(self) -> bool:
        """Return whether attention is multi-head latent attention (MLA)."""
        return bool(self.get("attention") == "mla")


def merged(out: Fields, *, agree: bool = False) -> ModelDescriptor:
    """Return the descriptor of the options' fields; the rest is `out.base`'s if the options have no shape of their own.

    Raises InputError with `out.problems` and each of layers, hidden size and attention heads that is missing, else with
    what makes the model invalid, else, with `agree`, with each field that contradicts `out.base`.
    """
    base = out.base
    values = {field: value for field, value in out.values.items() if out.of_options(field)}
    if base is not None and not out.whole:
        values = flat(base) | values
    missing = [
        out.args.problem(
            f"the options do not say the model's {what}",
            *out.sources[field],
            hint="name the model, --model M" if base is None else None,
        )
        for field, what in _NEEDED.items()
        if field not in values
    ]
    if out.problems or missing:
        raise InputError([*out.problems, *missing])
    model = _validated(out, values)
    if agree and base is not None:
        wrong = _contradictions(out, model, base)
        if wrong:
            raise InputError(wrong)
    return model


def _validated(out: Fields, values: dict[str, Any]) -> ModelDescriptor:
    """Return the descriptor of dotted fields and their values, named "32 layers of 4096".

    Its model_type is that of the most similar of deepseek_v3 (MLA), mixtral (experts), llama and gpt2 (an MLP without a
    gate); its dtype is float16 with --fp16, else bfloat16. Raises InputError with one problem per validation error.
    """
    fields = nested(values)
    if "latent" in fields:
        fields["latent"].setdefault("q_lora_rank", None)
    experts, gated = fields.get("experts"), fields.get("gated_mlp", True)
    fields |= {
        "schema": "symconfig.model/1",
        "name": f"{fields['num_hidden_layers']} layers of {fields['hidden_size']}",
        "source": "the options that it is trained with",
        "model_type": "deepseek_v3" if "latent" in fields else "mixtral" if experts else "llama" if gated else "gpt2",
        "torch_dtype": "float16" if out.args.switch("fp16") else "bfloat16",
    }
    try:
        return ModelDescriptor.model_validate(fields, strict=False)
    except ValidationError as error:
        raise InputError(
            [
                out.args.problem(
                    f"makes no model: {text}", *(out.sources.get(field) or ("num_layers",)), got=out.values.get(field)
                )
                for item in error.errors(include_url=False)
                for field, text in _sentences(item)
            ]
        ) from None


def _sentences(item: Any) -> list[tuple[str, str]]:
    """Return (dotted field, text) for each fault in a pydantic error; a validator's text is split at semicolons."""
    field = ".".join(map(str, item["loc"]))
    if item["type"] != "value_error":
        return [(field, str(item["msg"]).removeprefix("Input ").lower())]
    return [
        ((f"{field}." if field else "") + text.partition(" ")[0], text)
        for text in str(item["ctx"]["error"]).split("; ")
    ]


def _contradictions(out: Fields, model: ModelDescriptor, base: ModelDescriptor) -> list[Problem]:
    """Return a problem, at its options, for each field in which the options' `model` differs from the user's `base`.

    Fields of training (`_TRAINING`), and fields that come from no option, may differ.
    """
    mine, theirs = meaning(model), meaning(base)
    contradicted = []
    for field in zoo.differing(mine, theirs):
        sources = out.sources.get(field)
        if field in _TRAINING or not sources:
            continue
        absent = "" if any(map(out.args.given, sources)) else ", and nothing is given"
        what = f"is not {base.name}'s {field}{absent}"
        need = str(theirs.get(field, "none"))
        contradicted.append(out.args.problem(what, *sources, got=mine.get(field, "none"), need=need))
    return contradicted

"""Megatron-LM's own parser and config classes on each rule's example: what is called an error, and when it shows."""

from __future__ import annotations

from symconfig.recover.words import settings
from symconfig.rules import examples
from symconfig.rules.facts import MegatronFacts
from symconfig.rules.megatron import RULES
from symconfig.rules.rule import Rule
from symconfig.verify import megatron_session
from symconfig.verify.megatron_session import Job
from tests.verify.megatron_support import source

REST = ("--mock-data", "--tokenizer-type", "NullTokenizer", "--vocab-size", "1000", "--train-iters", "10", "--lr",
        "1e-4", "--min-lr", "1e-5")
# Errors that core_v0.19 takes: what happens instead, and when.
LATER = {
    "rampup-over-replicas": "the calculator of microbatches asserts it at the first step",
    "layout-of-mtp-first": "the builder of the model refuses it",
    "interleaving-group": "the schedule refuses it in the first step",
    "query-groups-ignored": "another model is trained",
    "query-groups-over-heads": "the first forward pass fails",
    "mlp-over-tp": "the first weight that is built fails",
    "sequence-over-tp": "the first scatter fails",
    "low-precision-sizes": "Transformer Engine asserts it in the first product",
    "expert-over-etp": "the first weight that is built fails",
    "shared-expert-over-tp": "the first weight that is built fails",
    "experts-need-sequence-parallel": "the first forward pass raises",
    "topk-over-experts": "the first router fails",
    "biases-of-experts": "the first experts that are built assert it",
    "quantised-without-half": "the weights would be fp32",
    "local-attention-over-cp": "the first attention that is built asserts it",
    "attention-environment": "the model asserts it when it is built",
    "layers-of-experts": "the builder of the layers asserts it",
    "heads-over-cp": "Transformer Engine asserts it in the first attention",
    "windows-over-ring": "Transformer Engine asserts it in the first attention",
    "cp-without-kernels": "Transformer Engine finds no attention in the first step",
    "format-without-kernels": "Transformer Engine refuses it when the first layer is built",
    "warm-up-beyond-decay": "the schedule of the learning rate asserts it",
}
# No errors, since a fork may have the option or the shell set the variable.
SOONER = {"option-of-a-fork", "options-of-several-versions", "environment-missing"}
# This machine has no kernel for it; where there is one it parses.
NO_KERNEL = {"expert-options-without-experts"}


def job(rule: Rule[MegatronFacts]) -> Job:
    """The example, with the data and the learning rate that it is not about."""
    words = examples.words(rule)
    named = {setting.name for setting in settings(words, "")}
    for setting in settings(REST, ""):
        if setting.name not in named and not (setting.name == "--mock-data" and "--data-path" in named):
            words += [setting.name, *(value.text for value in setting.values)]
    exported = {name: word.text for name, word in (examples.megatron_facts(rule).environment or {}).items()}
    capability = megatron_session.CAPABILITY[rule.architecture or examples.ARCHITECTURE]
    return Job(rule.name, tuple(words), rule.gpus, capability, env=exported)


def test_megatron_refuses_the_errors_but_for_those_that_show_later() -> None:
    megatron = source()
    rules = [rule for rule in RULES if examples.version(rule).startswith("core_v{}.{}.".format(*megatron.release))]
    results = megatron_session.run(megatron, [job(rule) for rule in rules], 60.0)
    refused = {rule.name for rule in rules if not results[rule.name].ok} - NO_KERNEL
    errors = {rule.name for rule in rules if rule.severity == "error"}
    assert refused == errors - set(LATER) | (SOONER & {rule.name for rule in rules})

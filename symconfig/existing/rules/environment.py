"""The environment of a launch of Megatron-LM, against the table that symconfig's own launchers are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_checks import CP, TP
from symconfig.frameworks.megatron.environment import Row, applying

# Of --attention-backend: what Megatron-LM sets, and asserts that nobody else has set otherwise.
ATTENTION: Mapping[str, Mapping[str, str]] = {
    "auto": {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "1", "NVTE_UNFUSED_ATTN": "1"},
    "flash": {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"},
    "fused": {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "NVTE_UNFUSED_ATTN": "0"},
    "unfused": {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "1"},
    "local": {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"},
}
# Values that make every step slower, and what they do.
SLOW: Mapping[str, tuple[tuple[str, ...], str]] = {
    "CUDA_LAUNCH_BLOCKING": (("1",), "the host waits for every kernel"),
    "NCCL_P2P_DISABLE": (("1",), "GPUs of a node speak through the host's memory, not over NVLink"),
    "NCCL_IB_DISABLE": (("1",), "nodes speak over sockets, not over InfiniBand or RoCE"),
    "NCCL_SHM_DISABLE": (("1",), "GPUs without NVLink speak over the network"),
    "NCCL_DEBUG": (("TRACE",), "every call is printed"),
    "TORCH_DISTRIBUTED_DEBUG": (("DETAIL",), "every collective is checked among all ranks"),
    "TORCH_CPP_LOG_LEVEL": (("INFO",), "every collective is printed"),
    "NCCL_BLOCKING_WAIT": (("1",), "the host waits for every collective"),
    "TORCH_NCCL_BLOCKING_WAIT": (("1",), "the host waits for every collective"),
    "NVTE_DEBUG": (("1",), "every attention call is printed"),
}

# The conditions of the table's rows, of options. The names are those of frameworks.megatron.environment.
_WHEN: dict[str, Callable[[MegatronFacts], bool]] = {
    "always": lambda facts: True,
    "fsdp": lambda facts: facts.fsdp or facts.on("use_torch_fsdp2"),
    "moe_overlap": lambda facts: facts.on("overlap_moe_expert_parallel_comm"),
    "tp": lambda facts: facts.tp > 1,
    "tp_or_cp": lambda facts: facts.tp > 1 or facts.cp > 1,
    "activation_offload": lambda facts: facts.on("fine_grained_activation_offloading"),
}


def _clause(reason: str) -> str:
    """Return a sentence behind a colon: its first word small, unless it is a name."""
    return reason if reason[1:2].isupper() else reason[0].lower() + reason[1:]


def _rows(facts: MegatronFacts, forced: bool) -> Iterator[tuple[Row, str | None]]:
    """Yield what must (or should) be set for these options, and what is."""
    if facts.architecture is None:
        raise NotKnown
    for row in applying(facts.version, facts.architecture, lambda when: _WHEN[when](facts)):
        if row.forced == forced:
            try:
                yield row, facts.variable(row.name)
            except NotKnown:
                continue


def environment_contradicts(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=True):
        wrong = value != row.value if row.refused is None else value in row.refused
        if value is not None and wrong:
            need = row.value if row.refused is None else f"another value, {row.value} for example"
            yield facts.about(row.name, _clause(row.reason), got=value, need=need)


def environment_missing(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=True):
        if value is None and row.refused is None:
            yield facts.about(
                row.name,
                f"is not set here: {_clause(row.reason)}",
                TP,
                CP,
                need=row.value,
                hint=f"export {row.name}={row.value}",
            )


def environment_advised(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=False):
        if value is None or row.value not in value.split(","):
            yield facts.about(
                row.name, _clause(row.reason), got=value or "nothing", hint=f"export {row.name}={row.value}"
            )


def attention_environment(facts: MegatronFacts) -> Iterator[Problem]:
    backend = str(facts["attention_backend"])
    for name, wanted in ATTENTION.get(backend, {}).items():
        value = facts.variable(name)
        if value is not None and value != wanted:
            yield facts.about(
                name,
                f"contradicts --attention-backend {backend}",
                got=value,
                need=f"{wanted}, or unset",
                hint="another --attention-backend, without the variable",
            )


def slow_environment(facts: MegatronFacts) -> Iterator[Problem]:
    for name, (values, what) in SLOW.items():
        if (value := facts.variable(name)) is not None and value.upper() in values:
            yield facts.about(name, what, got=value, need="it unset")

"""The environment of a launch of Megatron-LM, against the table that symconfig's own launchers are written from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from symconfig.errors import Problem
from symconfig.existing.rules.facts import MegatronFacts, NotKnown
from symconfig.existing.rules.megatron_grid import CP, TP
from symconfig.existing.rules.megatron_switches import REDUCE
from symconfig.existing.rules.rule import Rules
from symconfig.frameworks.megatron.environment import Row, applying

CONNECTIONS = "CUDA_DEVICE_MAX_CONNECTIONS"
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

MEGATRON: Rules[MegatronFacts] = Rules()


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


@MEGATRON.rule(
    "environment-contradicts",
    "error",
    "A variable has a value that Megatron-LM refuses",
    "validate_args looks at it and stops; the table names the line (frameworks/megatron/environment.json).",
    "--tensor-model-parallel-size 2 --sequence-parallel",
    environment={CONNECTIONS: "8"},
)
def _contradicts(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=True):
        wrong = value != row.value if row.refused is None else value in row.refused
        if value is not None and wrong:
            need = row.value if row.refused is None else f"another value, {row.value} for example"
            yield facts.about(row.name, _clause(row.reason), got=value, need=need)


@MEGATRON.rule(
    "environment-missing",
    "warning",
    "A variable is not set that Megatron-LM asks for",
    "validate_args stops, unless the shell or the cluster sets it beside the script "
    "(frameworks/megatron/environment.json).",
    "--tensor-model-parallel-size 2 --sequence-parallel",
    environment={},
)
def _missing(facts: MegatronFacts) -> Iterator[Problem]:
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


@MEGATRON.rule(
    "environment-advised",
    "note",
    "A variable that saves memory or time is not set, or otherwise",
    "symconfig's launchers set it; the table says why (frameworks/megatron/environment.json).",
    "--lr 1e-4",
    environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:512"},
)
def _advised(facts: MegatronFacts) -> Iterator[Problem]:
    for row, value in _rows(facts, forced=False):
        if value is None or row.value not in value.split(","):
            yield facts.about(
                row.name, _clause(row.reason), got=value or "nothing", hint=f"export {row.name}={row.value}"
            )


@MEGATRON.rule(
    "overlap-serialised",
    "warning",
    "One hardware queue undoes the overlap of gradients and weights",
    f"{CONNECTIONS}=1 is for tensor and context parallelism; without them it queues the reductions behind the "
    "computation that is to hide them (Megatron-LM#1468: a trace without and with it).",
    "--lr 1e-4",
    environment={CONNECTIONS: "1"},
)
def _serialised(facts: MegatronFacts) -> Iterator[Problem]:
    if (
        facts.variable(CONNECTIONS) == "1"
        and facts.tp == facts.cp == 1
        and facts.dp > 1
        and facts.on(REDUCE)
        and not facts.fsdp
        and facts.architecture != "blackwell"
    ):
        yield facts.about(
            CONNECTIONS,
            "the reductions wait for the computation that is to hide them",
            REDUCE,
            got="1",
            need="nothing without tensor or context parallelism",
        )


@MEGATRON.rule(
    "attention-environment",
    "error",
    "The environment contradicts --attention-backend",
    "Megatron-LM sets NVTE_FLASH_ATTN, NVTE_FUSED_ATTN and NVTE_UNFUSED_ATTN by --attention-backend (auto, by default, "
    "sets all to 1), and asserts that they were not set otherwise "
    "(core/models/common/language_module/language_module.py, _set_attention_backend).",
    "--lr 1e-4",
    environment={"NVTE_FLASH_ATTN": "0"},
)
def _attention(facts: MegatronFacts) -> Iterator[Problem]:
    backend = str(facts.value("attention_backend"))
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


@MEGATRON.rule(
    "slow-environment",
    "warning",
    "A variable for finding faults makes every step slower",
    "It is of use while something is broken, and costs as much as it says.",
    "--lr 1e-4",
    environment={"NCCL_P2P_DISABLE": "1"},
)
def _slow(facts: MegatronFacts) -> Iterator[Problem]:
    for name, (values, what) in SLOW.items():
        if (value := facts.variable(name)) is not None and value.upper() in values:
            yield facts.about(name, what, got=value, need="it unset")


@MEGATRON.rule(
    "registered-buffers-in-segments",
    "warning",
    "NCCL's registered buffers do not go with expandable segments",
    "distributed_data_parallel_config.py raises below PyTorch 2.11: the allocator's pools cannot be expandable.",
    "--use-nccl-ub",
    environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    since="core_v0.13.0",
)
def _registered(facts: MegatronFacts) -> Iterator[Problem]:
    value = facts.variable("PYTORCH_CUDA_ALLOC_CONF") or ""
    if facts.on("nccl_ub") and "expandable_segments:True" in value.split(","):
        yield facts.about(
            "PYTORCH_CUDA_ALLOC_CONF",
            "needs PyTorch 2.11 or later beside --use-nccl-ub",
            got=value,
            need="no expandable_segments",
        )

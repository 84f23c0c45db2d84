"""The planner as tools of an agent: `symconfig serve --mcp`, a server of the Model Context Protocol (MCP) on stdio.

Each tool is a function of the Python API: its answer has the text of the terminal, and the JSON of `--json`. The server
has the rights of the user who starts it: it reads the files that a tool names, and writes only where `out` says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from symconfig.descriptor.job import Job
from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.errors import MISSING_FIELD, UNKNOWN_FIELD, InputError, Problem, SymconfigError
from symconfig.install import VERSION
from symconfig.plans import TOP
from symconfig.report.grid import LEAST_WIDTH, Block, plain

if TYPE_CHECKING:
    from mcp.server import Server
    from mcp.types import CallToolResult, ListToolsResult

INSTRUCTIONS = (
    "Plans how a large model is split over GPUs (tensor, pipeline, context, expert and data parallelism, ZeRO, "
    "recompute), predicts step time and memory with 90 % intervals, and writes launch files for Megatron-LM, DeepSpeed "
    "and others. Nothing runs on a GPU. State the model (a name of the zoo, or the path of a config.json), the "
    "cluster, gpus, global_batch_size and seq_length. An answer within 2 % of another is a tie."
)
_FOLDER = {"type": "string", "description": "a new folder, where the plan's files are written"}
_CLUSTER = {"type": "string", "description": "a cluster of the zoo, as h100, or the path of a descriptor"}


Answer = tuple[list[Block], dict[str, Any]]  # what a tool answers: the screen, and plain data


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool. does: its description; properties: of its arguments' JSON schema; run: called with the arguments."""

    does: str
    properties: Mapping[str, Any]
    required: tuple[str, ...]
    run: Callable[..., Answer]

    def schema(self) -> dict[str, Any]:
        """Return the JSON schema of the arguments; `job` has the fields of JOB.yaml."""
        job = Job.model_json_schema(by_alias=True)
        sections = job.pop("$defs")
        properties = {name: job if value is JOB else value for name, value in self.properties.items()}
        schema = {"type": "object", "properties": properties, "required": list(self.required)}
        return {**schema, "additionalProperties": False, **({"$defs": sections} if "job" in properties else {})}


JOB: Mapping[str, Any] = {}  # stands for the schema of JOB.yaml


def _plan(job: Mapping[str, Any], out: str | None = None, top: int = TOP) -> Answer:
    """Plan a job given by its fields; with `out`, write the plan's files into that folder. top: how many plans. Raises
    as `plan` and `PlanResult.write`.
    """
    from symconfig.api.planning import plan
    from symconfig.report.rl import blocks as of_step
    from symconfig.report.table import blocks

    result = plan(**job, top=top)
    if out is not None:
        result.write(out)
    return (of_step if result.plan.rl else blocks)(result.plan), result.to_dict()


def _estimate(job: Mapping[str, Any]) -> Answer:
    from symconfig.api.existing import estimate

    result = estimate(**job)
    return result.blocks(), result.to_dict()


def _audit(source: str, cluster: str | None = None, gpus: int | None = None, log: str | None = None) -> Answer:
    """Return the audit of a script and, with the log of its run, the prediction compared with the log (`log` in the
    data). Raises as `audit` and `compare`.
    """
    from symconfig.api.existing import audit, audit_blocks, audit_data, compare

    done = audit(source, cluster, gpus)
    compared = None if log is None else compare(done, log)
    return audit_blocks(done, compared), audit_data(done, compared)


def _replan(plan: str, changes: Mapping[str, Any], out: str | None = None) -> Answer:
    """Solve a plan's file again with changed fields (arguments of `replan`); with `out`, write the new plan's files
    there.
    """
    from symconfig.api.replan import replan
    from symconfig.report.replan import replan_blocks

    result = replan(plan, **changes)
    if out is not None:
        result.new.write(out)
    return replan_blocks(result.found), result.to_dict()


def _list(kind: str) -> Answer:
    if kind not in ("models", "clusters"):
        raise InputError("wrong value", field="kind", got=kind, need="models or clusters")
    names = list(zoo_models() if kind == "models" else zoo_clusters())
    return [", ".join(names)], {kind: names}


TOOLS: Mapping[str, Tool] = {
    "plan": Tool(
        "Find the fastest configuration on one kind of GPUs that fits in memory, with alternatives; with `out` write "
        "its launch files.",
        {"job": JOB, "out": _FOLDER, "top": {"type": "integer", "description": f"plans to show (default {TOP})"}},
        ("job",),
        _plan,
    ),
    "estimate": Tool(
        "Predict memory and time of one layout, given by job.pins (tp, pp, …), also where it does not fit.",
        {"job": JOB},
        ("job",),
        _estimate,
    ),
    "audit": Tool(
        "Read a launch script or configuration, never running it: what is wrong, what it will do, what would be "
        "better; with `log` compare a running job's log with the prediction.",
        {
            "source": {"type": "string", "description": "path of the script, YAML or JSON, or a line of arguments"},
            "cluster": {**_CLUSTER, "description": f"{_CLUSTER['description']}; without it nothing is predicted"},
            "gpus": {"type": "integer", "description": "if the script's launcher does not say"},
            "log": {"type": "string", "description": "path of what the running job prints"},
        },
        ("source",),
        _audit,
    ),
    "replan": Tool(
        "Solve a written plan again with some fields of its job changed: what changes, and whether checkpoints load.",
        {
            "plan": {"type": "string", "description": "the folder of a plan, or its plan.json"},
            "changes": {"type": "object", "description": "fields of the job with their new values, as {gpus: 32}"},
            "out": _FOLDER,
        },
        ("plan", "changes"),
        _replan,
    ),
    "list": Tool(
        "List the names of the zoo's models or clusters.", {"kind": {"enum": ["models", "clusters"]}}, ("kind",), _list
    ),
}


_TYPES: Mapping[str, type] = {"string": str, "integer": int, "array": list, "object": Mapping}


def _wrong(value: Any, schema: Mapping[str, Any], field: str = "") -> Iterator[Problem]:
    """Yield a problem for each value of another type than its JSON schema has, and for fields unknown or missing.
    field: the dotted name of `value`; "" for all arguments. Alternatives and references of a schema are left to the
    function that takes the value.
    """
    kind = schema.get("type", "")
    if kind in _TYPES and (isinstance(value, bool) or not isinstance(value, _TYPES[kind])):
        yield Problem("wrong type", field=field, got=str(value)[:80], need=f"a JSON {kind}")
    elif known := schema.get("properties"):
        inside = f"{field}." if field else ""
        yield from (Problem(UNKNOWN_FIELD, field=inside + name) for name in value if name not in known)
        yield from (Problem(MISSING_FIELD, field=inside + name) for name in schema["required"] if name not in value)
        for name in (name for name in known if name in value):
            yield from _wrong(value[name], known[name], inside + name)


def answer(name: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any] | None]:
    """Return (a tool's text, its data as JSON). Any SymconfigError, also for an unknown tool or wrong arguments, gives
    its problems as text, and None as data.
    """
    tool = TOOLS.get(name)
    try:
        if tool is None:
            raise InputError("there is no such tool", field="name", got=name, need=", ".join(TOOLS))
        if wrong := list(_wrong(arguments, tool.schema())):
            raise InputError(wrong)
        blocks, data = tool.run(**arguments)
    except SymconfigError as error:
        return plain([f"error: {problem}" for problem in error.problems], LEAST_WIDTH), None
    return plain(blocks, LEAST_WIDTH), data


def server() -> Server[Any]:
    """Return the MCP server that lists and calls TOOLS, each call in a thread; an answer without data is an error.
    Raises InputError without the extra `agents`.
    """
    try:
        from anyio import to_thread
        from mcp import types
        from mcp.server import Server
    except ImportError:
        what = "needs the official SDK of the Model Context Protocol"
        raise InputError(what, field="--mcp", hint="pip install 'symconfig[agents]'") from None

    async def listed(_: Any, __: Any) -> ListToolsResult:
        tools = [types.Tool(name=name, description=one.does, input_schema=one.schema()) for name, one in TOOLS.items()]
        return types.ListToolsResult(tools=tools)

    async def called(_: Any, asked: types.CallToolRequestParams) -> CallToolResult:
        text, data = await to_thread.run_sync(partial(answer, asked.name, asked.arguments or {}))
        content = types.TextContent(type="text", text=text)
        return types.CallToolResult(content=[content], structured_content=data, is_error=data is None)

    return Server("symconfig", version=VERSION, instructions=INSTRUCTIONS, on_list_tools=listed, on_call_tool=called)


def serve() -> None:
    """Answer on stdin and stdout until the client closes them. Raises InputError without the extra `agents`."""
    made = server()
    import anyio
    from mcp.server.stdio import stdio_server

    async def run() -> None:
        async with stdio_server() as (received, sent):
            await made.run(received, sent, made.create_initialization_options())

    anyio.run(run)

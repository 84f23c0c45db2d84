"""What a rank has in each phase of the step that is counted: bytes of what rests, and the allocator's peak."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from device import Device
from torch._C._profiler import _EventType
from torch.profiler import ProfilerActivity, profile


class Kind(Protocol):
    """The workers that run: what the CPU stands in for, and where their engine has what is counted."""

    def stand_in(self) -> None:
        """Put the CPU in the place of what a GPU has."""

    def classes(self) -> tuple[Any, type[Any], type[Any]]:
        """Return verl's module of the engine, the engine and the one with a head."""

    def move(self, moved: Any, engine: Any, device: str, **parts: bool) -> None:
        """Let verl move parts of an engine, as far as there is another place."""

    def weights(self, engine: Any) -> int: ...

    def gradients(self, engine: Any) -> int: ...

    def states(self, engine: Any) -> int: ...

    def stepped(self, engine: Any) -> int:
        """Count the numbers whose states this rank keeps."""

    def reference(self, engine: Any) -> int: ...

    def read(self, lengths: list[int]) -> int:
        """Return the tokens that the model has of sequences of these lengths."""

    def rate(self, engine: Any) -> float: ...


class Counted:
    """What a rank has in each phase of the step that is counted."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.actor: Any = None
        self.phases: dict[str, dict[str, Any]] = {}
        self.now: dict[str, Any] = {}
        self.on_host: set[str] = set()

    def watch(self) -> None:
        """Note the micro-batches that verl makes, what it sends to the host, and what there is when it steps."""
        kind = self.kind
        module, engines, headed = kind.classes()
        packed, moved, stepped, forward = (
            module.prepare_micro_batches, engines.to, engines.optimizer_step, headed.forward_step,
        )  # fmt: skip

        def prepare(*given: Any, **options: Any) -> Any:
            made = packed(*given, **options)
            lengths = [each["input_ids"].offsets().diff().tolist() for each in made[0]]
            self.now.setdefault("tokens", []).append([sum(each) for each in lengths])
            self.now.setdefault("read", []).append([kind.read(each) for each in lengths])
            return made

        def to(engine: Any, device: str, model: bool = True, optimizer: bool = True, grad: bool = True) -> None:
            parts = {name for name, on in (("weights", model), ("optimizer state", optimizer)) if on}
            if not engine.engine_config.forward_only:
                self.on_host = self.on_host - parts if isinstance(device, Device) else self.on_host | parts
            kind.move(moved, engine, device, model=model, optimizer=optimizer, grad=grad)

        def step(engine: Any) -> Any:
            self.now |= {"weights": kind.weights(engine), "gradients": kind.gradients(engine)}
            made = stepped(engine)
            self.now["optimizer state"] = kind.states(engine)
            return made

        def forwarded(engine: Any, *given: Any, **options: Any) -> Any:
            self.now["on the host"] = sorted(self.on_host)
            if self.actor is not None:
                self.now.setdefault("gradients", kind.gradients(self.actor))
            return forward(engine, *given, **options)

        module.prepare_micro_batches, engines.to, engines.optimizer_step = prepare, to, step
        headed.forward_step = forwarded

    @contextmanager
    def phase(self, name: str, worker: Any, count: bool) -> Iterator[None]:
        self.now, self.actor = {}, worker.actor.engine
        if not count:
            yield
            return
        with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as seen:
            yield
        self.phases[name] = self.now | {
            "peak": most(seen, buffers=name != "update"),
            "gradients afterwards": self.kind.gradients(self.actor),
            "on the host afterwards": sorted(self.on_host),
            "reference": self.kind.reference(worker.ref.engine) if worker.ref is not None else 0,
        }


def local(tensors: Iterable[torch.Tensor | None]) -> int:
    """Return the bytes of this rank's shards."""
    held = [each for each in tensors if each is not None]
    return sum(each.to_local().nbytes if hasattr(each, "to_local") else each.nbytes for each in held)


def most(seen: Any, *, buffers: bool) -> int:
    """Return the most bytes at once of what was allocated while a profiler looked, but for what gloo itself asks for.
    buffers: those of FSDP's all-gathers, too, which gloo's threads give up when they come to it."""
    events: list[tuple[int, int, int, bool]] = []

    def walk(event: Any, path: tuple[str, ...]) -> None:
        if event.tag == _EventType.Allocation:
            own = event.extra_fields
            network = any("gloo" in name or name.startswith("c10d::") for name in path)
            gathered = any(name.startswith("FSDP::all_gather (") for name in path) and not buffers
            events.append((event.start_time_ns, own.ptr, own.alloc_size, not (network or gathered)))
        for child in event.children:
            walk(child, (*path, event.name))

    for root in seen.profiler.kineto_results.experimental_event_tree():
        walk(root, ())
    live: dict[int, int] = {}
    now = peak = 0
    for _, place, size, counts in sorted(events):
        now -= live.pop(place, 0)  # given up, by whichever thread
        if size > 0 and counts:
            live[place] = size
            now += size
            peak = max(peak, now)
    return peak

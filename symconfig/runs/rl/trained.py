"""A model that a step trains: what its forwards and its updates take and hold, by the planner's own costs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from symconfig.cost.blocks import KEPT, TRANSIENT
from symconfig.cost.framework import Stepping, reserved_bytes
from symconfig.cost.lattice import OF_LAYER, Array
from symconfig.cost.optimizer import gathered_s
from symconfig.cost.table import Choice
from symconfig.graph.model import largest_trained, parameters
from symconfig.graph.parts import is_layer
from symconfig.plans.plan import Candidate, Plan
from symconfig.runs.rl.logits import LogitBytes
from symconfig.solve.costed import Costed, costed, times
from symconfig.solve.interval import uneven
from symconfig.solve.predict import restore
from symconfig.solve.prospect import Prospect, recomputing
from symconfig.solve.run import weighs_loads

STATES, WEIGHTS, GRADIENTS = "optimizer state", "weights", "gradients"
MODEL_STATES = (WEIGHTS, GRADIENTS, STATES)  # what an optimizer's step reads and writes
EXCHANGE = "data-parallel communication"
_FIXED = (EXCHANGE, "optimizer", "overhead")  # parts of a step's time, whatever tokens its micro-batches have
_LOSS, _WORKING = "head and loss", "working set"
_SHORT = 2.0  # bytes of a number in 16 bits


@dataclass(frozen=True)
class Trained:
    """A plan's candidate as a trained model.

    fill: tokens of its micro-batches over the tokens that they have room for. logits: bytes per logit of its loss.
    written: the candidate as rendered, if an update really has fewer micro-batches or shorter ones. point: its layout;
    None: as the plan restores it. frozen: whether it is only read, never trained.
    """

    plan: Plan
    candidate: Candidate
    fill: float
    logits: LogitBytes
    written: Candidate | None = None
    point: Prospect | None = None
    frozen: bool = False

    @property
    def as_written(self) -> Candidate:
        """Return the candidate as the rendered files configure it."""
        return self.written or self.candidate

    @property
    def frees_gradients(self) -> bool:
        """Return whether gradients take memory only during an update."""
        return self.prospect.request.framework.shard_bytes is not None

    @cached_property
    def prospect(self) -> Prospect:
        """Return `point`, or else the candidate as the plan restores it, with the trainer's loss kernel if `logits`
        names one. Cached.
        """
        whole = self.point or restore(self.plan, self.candidate)
        if self.logits.loss is None:
            return whole
        how = (framework := whole.request.framework).implementation
        how = replace(how, loss=replace(how.loss, kernel=self.logits.loss))
        return replace(whole, request=replace(whole.request, framework=replace(framework, implementation=how)))

    @cached_property
    def parts(self) -> Costed:
        """Return the candidate's costs by stage."""
        return costed(self.prospect)

    @cached_property
    def memory(self) -> Mapping[str, float]:
        """Return the bytes by part on the fullest GPU during an update. Without FSDP these are the plan's (of a frozen
        model as costed). With it, weights, gradients and optimizer state are the shards alone, gradients 0 if the state
        is in host memory; weights gathered in a pass are not included.
        """
        own, framework = self._own, self.prospect.request.framework
        if framework.shard_bytes is None:
            return own
        trained = parameters(self.plan.model).trainable if own[STATES] else 0  # else all shards are in host memory
        ranks = self.candidate.configuration.world_size
        elements, sizes = trained / (ranks / framework.optimizer_instances), framework.bytes
        gathered = sizes.weight if framework.sharding(self.prospect.configuration.zero_stage).weight else 0.0
        wider = elements * (2 * framework.shard_bytes - sizes.gradient - gathered)  # of weights and of gradients
        gradients = elements * framework.shard_bytes
        return {**own, WEIGHTS: self._shards(framework.shard_bytes), GRADIENTS: gradients, STATES: own[STATES] - wider}

    @property
    def _own(self) -> Mapping[str, float]:
        """Return the bytes by part on the fullest stage: as predicted in the plan, of a frozen model as costed."""
        if self.frozen:
            return {name: float(part.max()) for name, part in self.parts.cost.memory.items()}
        return self.candidate.predicted.memory

    def _shards(self, trained_bytes: float) -> float:
        """Return the bytes of this GPU's shard of all weights, frozen ones included; 0 with parameter offload.
        trained_bytes: per trainable parameter.
        """
        degrees, framework = self.candidate.configuration, self.prospect.request.framework
        count, sizes = parameters(self.plan.model), framework.bytes
        every = count.trainable * trained_bytes + (count.total - count.trainable) * (sizes.frozen + sizes.frozen_rest)
        on_gpu = not self.candidate.configuration.param_offload
        return every / (degrees.world_size / framework.optimizer_instances) * on_gpu

    @property
    def _gathered(self) -> float:
        """Return the bytes of sharded weights that are gathered during a pass; 0 without sharded weights."""
        framework = self.prospect.request.framework
        if framework.shard_bytes is None:
            return 0.0
        return self._own[WEIGHTS] - self._shards(framework.bytes.weight)

    @property
    def _gathered_at_loss(self) -> float:
        """Return the bytes of gathered weights at the loss, the head's; 0 without sharded weights."""
        framework, model = self.prospect.request.framework, self.plan.model
        if framework.shard_bytes is None:
            return 0.0
        return min(framework.bytes.weight * model.vocab_size * model.hidden_size, self._gathered)

    @property
    def _gathered_at_head(self) -> float:
        """Return the bytes of gathered weights while the head computes logits; an untied head's count twice, for the
        all-gather's buffer."""
        copies = 1 if self.plan.model.tie_word_embeddings else 2
        return min(copies * self._gathered_at_loss, self._gathered)

    @property
    def libraries(self) -> float:
        """Return the bytes of the process's context and libraries on the GPU."""
        return self.prospect.machine.context_bytes

    @property
    def host_bytes_per_s(self) -> float:
        """Return the bandwidth of copies to the host, in bytes per second."""
        return float(self.prospect.machine.host_bytes_per_s)

    def update_s(self, updates: float) -> float:
        """Return the seconds of `updates` optimizer steps: the predicted step times `fill` (the share of real tokens),
        but data-parallel communication, optimizer and overhead, which do not depend on that, in full.
        """
        time = self.candidate.predicted.time
        fixed = sum(time.get(name, 0.0) for name in _FIXED)
        return updates * (self.fill * (self.candidate.predicted.step_s - fixed) + fixed)

    def forward_s(self, steps: float) -> float:
        """Return the seconds of the forward passes of `steps` optimizer steps, without a backward."""
        return self.passes_s(self.candidate.configuration.num_microbatches * steps, self.fill)

    def passes_s(self, passes: float, fill: float, streamed_s: float = 0.0) -> float:
        """Return the seconds of `passes` micro-batches' forwards per replica, plus pp - 1 for the pipeline's fill, with
        the all-gathers of sharded weights. fill: share of their tokens that are real. streamed_s: seconds to copy this
        GPU's shards from the host before each.
        """
        if (key := (fill, streamed_s)) not in self._pass_s:
            parts = self.parts
            gathered = gathered_s(parts.sums, parts.points, parts.setting, fill * parts.sums.ahead, streamed_s)
            self._pass_s[key] = fill * self._longest_s + float(np.max(gathered))
        return (passes + self.candidate.configuration.pp - 1) * self._pass_s[key]

    @cached_property
    def _pass_s(self) -> dict[tuple[float, float], float]:
        """Return the seconds of one micro-batch's forward by (fill, streamed_s), as far as `passes_s` was asked."""
        return {}

    @cached_property
    def _longest_s(self) -> float:
        """Return the seconds of a full micro-batch's forward on the slowest stage, with its message. Cached."""
        made = times(self.prospect, self.parts)
        return float(made.forward.sum(axis=1).max()) + made.busy_s

    def reading(self, room: int) -> Trained:
        """Return the model with micro-batches of one sequence of `room` tokens, for forwards only; cached by room. It
        is the model itself if its micro-batches have that room.
        """
        if room not in self._readings:
            point = self.prospect
            job = point.request.job.model_copy(update={"seq_length": room})
            request = replace(point.request, job=job).having(seq_length=room)
            point = replace(point.having(micro=1, seq_length=room), request=request)
            self._readings[room] = Trained(self.plan, self.candidate, self.fill, self.logits, point=point)
        return self._readings[room]

    @cached_property
    def _readings(self) -> dict[int, Trained]:
        prospect = self.prospect
        return {prospect.configuration.micro * prospect.request.seq_length: self}

    def forward_bytes(self, entropy: bool = False, share: float = 1.0) -> float:
        """Return the peak bytes of a forward pass without backward: the maximum over one layer, the head and the loss.
        Gathered weights of FSDP are included. entropy: whether the entropy is computed, too. share: tokens read at once
        over those of a micro-batch.
        """
        each = self.logits.entropy if entropy else self.logits.forward
        logits, tiles = share * self.logit_count, self._in_tiles(share)
        at_head = min(each, _SHORT) * logits + _SHORT * share * self._channels + tiles + self._gathered_at_head
        at_loss = each * logits + tiles + self._gathered_at_loss
        return max(share * self._layer_bytes + self._gathered, at_head, at_loss)

    @property
    def kept_bytes(self) -> float:
        """Return the bytes that an update's forward keeps (activations and logits) while another model is read."""
        activations = float(self._by_stage(self.parts.cost.memory["activations"]).max())
        return activations + self.logits.kept * self.logit_count + self.logits.scored * self._channels

    @property
    def _channels(self) -> float:
        """Return the number of elements of a micro-batch's hidden states at the head."""
        return self.logit_count / self.plan.model.vocab_size * self.plan.model.hidden_size

    def _in_tiles(self, share: float = 1.0) -> float:
        """Return the bytes of one tile of logits in 16 bits and of the kept scores, for a head that computes logits in
        tiles; 0 for others. share: of a micro-batch's tokens.
        """
        rows, columns = self.logits.tile
        tokens = share * self.logit_count / self.plan.model.vocab_size
        return _SHORT * min(rows, tokens) * columns + share * self.logits.scored * self._channels

    @cached_property
    def _layer_bytes(self) -> float:
        """Return an upper bound on the bytes of one forward of the largest layer: all activations kept without
        recomputation, plus its transient ones; at the busiest layer's expert load if loads are uneven.
        """
        point, request = self.prospect, self.prospect.request
        if request.uneven:  # at even loads, each as high as that of the busiest rank and layer
            ep = np.array([float(point.configuration.ep)])
            load = float(uneven(request.model, ep, request.job.task_of(request.model))[OF_LAYER][0])
            limits = request.job.limits.model_copy(update={"expert_imbalance": load})
            job = request.job.model_copy(update={"limits": limits})
            point = replace(point, request=replace(request, job=job, uneven=False))
        whole = costed(point.having(**recomputing(Choice()))).table
        made = (whole.passes[KEPT] + whole.passes[TRANSIENT])[0, :, 0]
        return max(float(made[index]) for index, kind in enumerate(whole.kinds) if is_layer(kind))

    @cached_property
    def busiest(self) -> Trained:
        """Return the model on the rank with the most expert load, cached; itself without experts, with ep 1, or if its
        loads are uneven already or stated.
        """
        request = self.prospect.request
        spread = request.model.experts is not None and self.prospect.configuration.ep > 1
        if not spread or request.uneven or not weighs_loads(request.job):
            return self
        point = replace(self.prospect, request=replace(request, uneven=True))
        return Trained(self.plan, self.candidate, self.fill, self.logits, point=point)

    @property
    def tokens_per_gpu(self) -> int:
        """Return the tokens of a micro-batch per GPU, divided by cp and rounded up."""
        c = self.prospect.configuration
        return -(-c.micro * self.prospect.request.seq_length // c.cp)

    @property
    def logit_count(self) -> float:
        """Return a micro-batch's number of logits per GPU of the last stage: tokens / cp x padded vocabulary / tp."""
        prospect, p = self.prospect, self.prospect.configuration
        padded = prospect.request.framework.padded_vocab(prospect.request.model.vocab_size, np.array([float(p.tp)]))
        return p.micro * prospect.request.seq_length / p.cp * float(np.ravel(padded)[0]) / p.tp

    def peak_bytes(self, entropy: bool = False) -> float:
        """Return the peak bytes of an update on the fullest GPU: the maximum of forward and backward, and of the
        optimizer's step with the model states.
        """
        return max(
            self.passing_bytes(entropy), self.stepping_bytes + sum(self.memory.get(one, 0.0) for one in MODEL_STATES)
        )

    @property
    def stepping_bytes(self) -> float:
        """Return the temporary bytes of the optimizer's step: all gradients' (TOGETHER), twice the largest parameter's
        share of them (IN_TURN), else 0.
        """
        framework, gradients = self.prospect.request.framework, self.memory.get(GRADIENTS, 0.0)
        if framework.stepping is Stepping.IN_TURN:
            trained = parameters(self.plan.model).trainable
            return 2 * gradients * largest_trained(self.plan.model) / trained
        return gradients * (framework.stepping is Stepping.TOGETHER)

    def passing_bytes(self, entropy: bool = False) -> float:
        """Return the peak bytes of an update's forward and backward on the fullest stage; entropy: in the loss."""
        return float(self.passing_by_stage(entropy).max())

    def passing_by_stage(self, entropy: bool = False) -> Array:
        """Return the peak bytes of an update's forward and backward with its model states, `[pp]`. On the last stage,
        the working memory is the maximum of the layers' and the loss's (logits, and gradients of the head); all
        activations are held at that time. The planner's own loss is left out unless `logits.added`. entropy: whether it
        is in the loss.
        """
        parts = {name: self._by_stage(part) for name, part in self.parts.cost.memory.items()}
        working, logits = parts.pop(_WORKING), self.logits
        if not logits.added:
            parts.pop(_LOSS)
        each = (logits.entropy_update if entropy else logits.update) * self.logit_count
        later = self._gathered - self._gathered_at_loss
        working[-1] = max(working[-1], each + self._in_tiles() + self._at_head - later)
        wider = sum(self.memory.values()) - sum(self._own.values())
        whole: Array = working + sum(parts.values()) + wider + self._gathered
        return whole

    @property
    def _at_head(self) -> float:
        """Return the bytes of gradients at the head's backward; those of its weight only without an adapter."""
        model = self.plan.model
        trained = self.logits.by_weight * (model.adapter is None)
        return self.logits.by_channel * self._channels + trained * model.vocab_size * model.hidden_size

    def _by_stage(self, part: Array) -> Array:
        """Return a part's bytes as float64 `[pp]`, broadcast if it is the same for all stages."""
        whole: Array = np.broadcast_to(part, self.parts.cost.stage_bytes.shape)[:, 0, 0, 0].astype(np.float64)
        return whole

    def reserved(self, allocated: float) -> float:
        """Return the bytes that the allocator reserves for `allocated` bytes at a peak."""
        return reserved_bytes(allocated, self.prospect.request.framework)

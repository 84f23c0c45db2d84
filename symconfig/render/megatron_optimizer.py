"""The job's optimizer -> Megatron-LM options."""

from __future__ import annotations

from symconfig.plans.plan import Plan
from symconfig.render.megatron_args import Arguments


def optimizer_args(out: Arguments, plan: Plan) -> None:
    """Put the optimizer and its settings into the current group. What a release lacks is in its table of constraints.

    Muon steps embeddings, head, norms and biases with Adam, whose settings go with it.
    """
    optimizer, training = plan.job.optimizer, plan.training
    out.put("--optimizer", optimizer.name)
    out.put("--adam-beta1", training.adam_beta1)
    out.put("--adam-beta2", training.adam_beta2)
    out.put("--adam-eps", training.adam_eps)
    if optimizer.narrow:
        out.put("--use-precision-aware-optimizer")
        out.put("--main-params-dtype", optimizer.main_params)
        out.put("--exp-avg-dtype", optimizer.exp_avg)
        out.put("--exp-avg-sq-dtype", optimizer.exp_avg_sq)
    if optimizer.name == "sgd":
        out.put("--sgd-momentum", optimizer.speed)
    if optimizer.name == "muon":
        out.put("--muon-momentum", optimizer.speed)
        out.put("--muon-nesterov", optimizer.nesterov)
        out.put("--muon-num-ns-steps", optimizer.ns_steps)
        out.put("--muon-scale-mode", optimizer.scale_mode)
        out.put("--muon-extra-scale-factor", optimizer.extra_scale_factor)
        out.put("--muon-tp-mode", optimizer.tp_mode)

"""What a measured row states is read, or is said to be ignored; no row stops the others."""

from __future__ import annotations

import json
import random
import re
from contextlib import suppress
from pathlib import Path
from textwrap import dedent
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from symconfig.cli.main import main
from symconfig.descriptor.load import load_model
from symconfig.descriptor.measurements import (
    Degree,
    Measured,
    MeasuredCluster,
    MeasuredModel,
    MeasuredOptions,
    Row,
    Software,
    load_measurements,
)
from symconfig.errors import InputError
from symconfig.graph.implementation import Dispatch, LossKernel
from symconfig.measured.assumptions import KINDS, assuming
from symconfig.measured.cases import Case, case
from symconfig.measured.judge import judge
from symconfig.measured.row_options import _SPELLED, _TYPES, _spelled
from symconfig.measured.runs import read
from symconfig.solve.predict import predict
from symconfig.units import GIB
from tests.measured.support import file_of, run_text, score


def of(folder: Path, options: str = "", **fields: object) -> Case:
    text = run_text("a", "{step_s: 1.0}", **fields).replace("options: {", f"options: {{{options}")
    (row,) = load_measurements(file_of(folder, text)).rows
    return case("korthikanti2022", row)


def assume(folder: Path, source: str) -> Path:
    """Write assumptions about one source."""
    path = folder / "assume.yaml"
    path.write_text(f"schema: symconfig.assumptions/1\nsources: [{{{source}}}]\n", encoding="utf-8")
    return path


def named(folder: Path, model: str, task: str = "pretrain") -> Row:
    text = run_text("a", "{step_s: 1.0}").splitlines()
    lines = [f"  model: {{{model}}}" if line.startswith("  model:") else line for line in text]
    lines = [f"  task: {task}" if line.startswith("  task:") else line for line in lines]
    (row,) = load_measurements(file_of(folder, "\n".join(lines) + "\n")).rows
    return row


@pytest.mark.parametrize("option", ["moe_dispatcher: deepep", "features: DeepEP; EP overlap"])
def test_dispatchers_are_read(tmp_path: Path, option: str) -> None:
    found = of(tmp_path, f"{option}, ")
    assert found.configuration.framework.implementation.experts.dispatch is Dispatch.ONCE_A_RANK
    assert found.ignored == ()


def test_options_are_read_under_the_names_of_their_sources(tmp_path: Path) -> None:
    assert of(tmp_path, "cp_comm_type: a2a, ").configuration.cp_comm == "a2a"
    assert of(tmp_path, "cp_comm_type: megatron_cp_algo, ").configuration.cp_comm == "p2p"
    assert of(tmp_path, "grad_accumulation_dtype: fp32, ").configuration.framework.bytes.gradient == 4
    assert of(tmp_path, "fp8_params: true, ").configuration.framework.quantised_weights
    assert len(of(tmp_path, "cuda_graph: true, ").configuration.framework.graphed) > 0


def test_what_is_not_read_is_said_and_what_is_off_is_not(tmp_path: Path) -> None:
    found = of(tmp_path, "colour: blue, activation_cpu_offload: false, features: paged stash; full CG, ")
    assert found.ignored == ("colour: blue", "features: paged stash")
    assert "graphed" not in "".join(found.ignored)


def test_a_word_that_is_not_understood_is_refused_with_those_that_are(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = run_text("a", "{step_s: 1.0}").replace("options: {", "options: {cp_comm_type: carrier pigeon, ")
    assert main(["validate", str(file_of(tmp_path, text, run_text("b", "{step_s: 1.0}")))]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "options.cp_comm_type: is not understood (got carrier pigeon, need p2p, megatron_cp_algo, a2a" in said
    assert "1 of 2 rows scored" in said


@pytest.mark.parametrize(
    ("options", "instances"),
    [
        ("zero_stage: 1, zero1_group: 4, ", 2),
        ("zero_stage: 1, zero1_group: -1, ", 1),
        ("zero_stage: 3, fsdp_degree: 2, ", 4),
        ("zero_stage: 3, fsdp: hsdp, ", 1),  # of a node's eight GPUs
    ],
)
def test_groups_of_ranks_that_share_a_state(tmp_path: Path, options: str, instances: int) -> None:
    found = of(tmp_path, options, tp=1, dp=8, micro=1).configuration
    assert found.framework.optimizer_instances == instances


def test_a_model_that_is_named_like_a_public_one_has_its_shape(tmp_path: Path) -> None:
    found = case("korthikanti2022", named(tmp_path, "name: LLaMA-3.1 8B, num_hidden_layers: 4")).model
    whole = load_model("llama3.1-8b")
    assert found.num_hidden_layers == 4
    assert (found.hidden_size, found.intermediate_size, found.vocab_size) == (
        whole.hidden_size,
        whole.intermediate_size,
        whole.vocab_size,
    )
    experts = "name: DeepSeek-V3, attention: mla, num_hidden_layers: 8, num_experts: 64, q_lora_rank: 512"
    cut, public = case("korthikanti2022", named(tmp_path, experts)).model, load_model("deepseek-v3")
    assert (cut.experts.num_experts, cut.latent.q_lora_rank) == (64, 512)
    assert cut.experts.num_experts_per_tok == public.experts.num_experts_per_tok
    assert cut.experts.first_k_dense_replace == public.experts.first_k_dense_replace
    assert cut.latent.kv_lora_rank == public.latent.kv_lora_rank


def test_a_row_states_its_adapter_by_megatrons_names(tmp_path: Path) -> None:
    stated = "name: Llama2-70B, lora: {rank: 16, alpha: 32, targets: [linear_qkv, linear_proj]}"
    adapter = case("korthikanti2022", named(tmp_path, stated, "lora")).model.adapter
    assert (adapter.r, adapter.lora_alpha, adapter.target_modules) == (16, 32, ("qkv_proj", "o_proj"))


def test_a_row_that_leaves_out_a_size_does_not_stop_the_others(tmp_path: Path) -> None:
    without = run_text("a", "{step_s: 1.0}").replace("intermediate_size: 24576, ", "")
    found = score(file_of(tmp_path, without, run_text("b", "{step_s: 1.0}")))
    assert [item.row.id for item in found.rows] == ["b"]
    ((row, reason),) = found.skipped
    assert row == "a"
    assert "intermediate_size: is 0 but some layers have a dense MLP" in reason


def test_what_the_device_holds_is_compared_with_all_that_it_is_said_to(tmp_path: Path) -> None:
    for name in ("device_used_gib", "device_used_gb"):
        source = score(file_of(tmp_path, run_text("a", f"{{{name}: 30.0}}")))
        (item,) = source.rows
        assert item.memory == (item.prediction.predicted.device_bytes, 30 * GIB)


def test_files_of_one_name_are_one_source(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("first", "second")]
    for number, folder in enumerate(folders):
        folder.mkdir()
        file_of(folder, run_text(f"row{number}", "{step_s: 1.0}"))
    ((name, content),) = read([str(folder) for folder in folders])
    assert name == "korthikanti2022"
    assert [row.id for row in content.rows] == ["row0", "row1"]


def test_a_persons_own_assumptions_stand_first(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run_text("a", "{step_s: 1.0}").replace("recompute: selective, ", "")
    runs = file_of(tmp_path, text, name="mine")
    mine = assume(tmp_path, "source: mine, reason: our own launcher, options: {recompute: full}")

    def predicted(*more: str) -> float:
        assert main(["validate", str(runs), "--json", *more]) == 0
        return float(json.loads(capsys.readouterr().out)["rows"][0]["predicted"]["step_s"])

    before = predicted()
    assert predicted("--assume", str(mine)) > before
    assert predicted() == before


def test_a_recipe_holds_for_the_runs_that_it_names(tmp_path: Path) -> None:
    cut = "file: cut.yaml, degrees: {pp: [2]}, model: {num_nextn_predict_layers: 1}"
    told = 'options: {layout: "Et*3|(t*3|)*3L", cp_comm: a2a, etp: 2}'
    mine = assume(tmp_path, f"source: mine, reason: our own recipes, recipes: [{{{cut}, {told}}}]")
    run = "name: GPT-22B, num_hidden_layers: 12, hidden_size: 64, num_attention_heads: 4, vocab_size: 512, "
    row = named(tmp_path, run + "num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 64")
    with assuming(mine):
        covered = case("mine", row.model_copy(update={"parallel": {"tp": 2, "pp": 2, "cp": 2, "ep": 2, "dp": 1}}))
        other = case("mine", row.model_copy(update={"parallel": {"tp": 2, "pp": 1, "cp": 2, "ep": 2, "dp": 2}}))
    degrees, plain = covered.configuration, other.configuration
    assert (degrees.vpp, degrees.etp, covered.configuration.cp_comm) == (2, 2, "a2a")
    assert (plain.vpp, plain.etp, other.configuration.cp_comm) == (1, 1, "p2p")
    assert covered.model.num_nextn_predict_layers == 1
    assert other.model.num_nextn_predict_layers == 0
    assert {"layout", "etp", "cp_comm", "num_nextn_predict_layers"} <= set(dict(covered.documented))


def test_what_a_source_tuned_is_the_best_of_a_list(tmp_path: Path) -> None:
    """A number of chunks that the stages do not have is left out; what the row states is not tuned."""
    tuned = "batch: {micro: 1}, tuned: {micro: [2, 3], vpp: [2, 5]}, assumed: [micro]"
    mine = assume(tmp_path, f"source: mine, reason: ours, {tuned}")
    row = named(tmp_path, "name: Llama2-7B, vocab_size: 32000").model_copy(update={"parallel": {"pp": 4, "dp": 2}})
    with assuming(mine):
        stated = case("mine", row)
        batch = row.batch.model_copy(update={"micro": None})
        tuned = case("mine", row.model_copy(update={"batch": batch}))
        judged = judge("mine", row.model_copy(update={"batch": batch}))
    assert {(c.micro, c.vpp) for c in stated.others} == {(4, 2)}
    assert {(c.micro, c.vpp) for c in tuned.others} == {(1, 2), (2, 1), (2, 2)}
    assert dict(tuned.taken)["vpp"] == "the best of 1, 2"
    assert dict(tuned.taken)["micro"] == "the best of 1, 2, 3"
    ways = (tuned.configuration, *tuned.others)
    assert judged.time[0] == min(predict(tuned.model, tuned.cluster, c).predicted.step_s for c in ways)


@pytest.mark.parametrize("command", ["validate", "calibrate"])
def test_assumptions_that_cannot_be_read_are_refused(
    tmp_path: Path, command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = assume(tmp_path, "source: a")
    assert main([command, str(file_of(tmp_path, run_text("a", "{step_s: 1.0}"))), "--assume", str(wrong)]) == 2
    assert f"{wrong}:2:" in capsys.readouterr().err


def between(folder: Path, links: str) -> Case:
    text = run_text("a", "{step_s: 8.8}").replace("gpus: 8,", f"gpus: 16, {links},").replace("dp: 1}", "dp: 2}")
    (row,) = load_measurements(file_of(folder, text)).rows
    with assuming(assume(folder, "source: mine, reason: ours, network: 4x200 Gb/s")):
        return case("mine", row)


def test_the_network_that_a_row_states_stands_before_the_one_that_is_assumed(tmp_path: Path) -> None:
    assumed = between(tmp_path, "system: ours")
    stated = between(tmp_path, "inter_node: 4x100 Gb/s RoCE per node")
    rates = [[level.bandwidth_bytes_per_s.value for level in found.cluster.levels] for found in (assumed, stated)]
    assert rates == [[300e9, 12.5e9, 12.5e9], [300e9, 6.25e9, 6.25e9]]
    assert ("network", "4x200 Gb/s") in assumed.documented
    assert "network" not in dict(stated.documented)
    assert stated.ignored == ()


def test_links_inside_a_node_are_read(tmp_path: Path) -> None:
    found = between(tmp_path, "intra_node: NVLink 150 GB/s per direction, nvlink_domain: 4")
    board, node = found.cluster.levels[:2]
    assert (board.size, board.bandwidth_bytes_per_s.value, board.mesh) == (4, 150e9, True)
    assert (node.size, node.name) == (8, "node")  # through the processors, between boards without a switch
    assert found.ignored == ()


def test_degrees_that_are_not_of_the_rows_gpus_are_refused(tmp_path: Path) -> None:
    row = named(tmp_path, "name: Llama2-7B, vocab_size: 32000")
    with pytest.raises(InputError, match=r"got 16, need 8"):
        case("mine", row.model_copy(update={"parallel": {"tp": 2, "pp": 4, "dp": 2}}))


@pytest.mark.parametrize(("option", "stage"), [("", 3), ("reshard_after_forward: false, ", 1)])
def test_fsdp_that_keeps_what_it_gathered_cuts_up_states_only(tmp_path: Path, option: str, stage: int) -> None:
    assert of(tmp_path, f"zero_stage: 3, {option}").configuration.zero_stage == stage


def test_what_a_row_leaves_out_of_its_overlaps_is_as_the_source_has_it(tmp_path: Path) -> None:
    mine = assume(tmp_path, "source: mine, reason: ours, options: {overlap: {tp_comm: true, grad_reduce: true}}")
    stated = MeasuredOptions.model_validate({"overlap": {"grad_reduce": False}})
    row = named(tmp_path, "name: Llama2-7B, vocab_size: 32000").model_copy(update={"options": stated})
    with assuming(mine):
        found = case("mine", row)
    hide = found.configuration.framework.hide
    assert (hide.tp_pieces, hide.data) == (4, 0.0)
    assert dict(found.documented)["overlap"] == "{'tp_comm': True}"


@pytest.mark.parametrize(
    "options",
    [
        {"moe_dispatcher": "carrier pigeon"},
        {"cuda_graph": ["all"]},
        {"cp_comm_type": {"p2p": 1}},
        {"loss": 7},
        {"layout": 3},
        {"first_layers": "many"},
        {"recompute_modules": 1},
        {"ends_as_layers": "both"},
    ],
)
def test_a_value_that_is_not_understood_is_named(options: dict[str, object]) -> None:
    with pytest.raises(InputError, match="is not understood"):
        _spelled(options)


NAMES = {
    "model": tuple(MeasuredModel.model_fields),
    "cluster": tuple(MeasuredCluster.model_fields),
    "software": tuple(Software.model_fields),
    "parallel": get_args(Degree),
    "batch": ("micro", "global", "grad_accum", "seq_length"),
    "options": (*KINDS, *_TYPES, *_SPELLED, *MeasuredOptions.model_fields, "features"),
    "measured": tuple(Measured.model_fields),
}
VALUES = (None, 0, 1, 2, 3, 7, 64, 10**6, -1, 1.5, True, False, "", "word", "full", "none", [], ["word"], {}, {"a": 1})


def test_every_row_is_predicted_or_refused_with_a_reason(tmp_path: Path) -> None:
    """Rows of strangers may say anything: up to three fields of a good row are dropped or set to odd values."""
    draw = random.Random(45)
    (good,) = load_measurements(file_of(tmp_path, run_text("a", "{step_s: 1.0}"))).rows
    judged = 0
    for _ in range(600):
        row: dict[str, Any] = good.model_dump(by_alias=True, exclude_none=True)
        for _ in range(draw.randint(1, 3)):
            section = draw.choice(tuple(NAMES))
            row[section] = {**row[section], draw.choice(NAMES[section]): draw.choice(VALUES)}
        try:
            stated = Row.model_validate(row, strict=False)
        except ValidationError:
            continue
        with suppress(InputError):
            judge("a stranger", stated)
        judged += 1
    assert judged > 120


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ("embedding_counts_as_layer: true, ", (1, 1)),
        ("embedding_counts_as_layer: true, loss_counts_as_layer: false, ", (1, 0)),
        ("loss_counts_as_layer: true, embedding_counts_as_layer: false, ", (0, 1)),
    ],
)
def test_ends_that_count_as_layers(tmp_path: Path, options: str, ends: tuple[int, int]) -> None:
    found = of(tmp_path, options)
    assert (found.configuration.account_for_embedding, found.configuration.account_for_loss) == ends
    assert found.ignored == ()


def test_losses_offload_and_recompute_are_read(tmp_path: Path) -> None:
    found = of(tmp_path, "chunked_loss: true, optimizer_offload: true, ")
    uniform = "recompute_method: uniform, recompute_layers: 4, fp8_scope: linear, loss: true, "
    whole = of(tmp_path, uniform, recompute="full")
    assert found.configuration.framework.implementation.loss.kernel is LossKernel.IN_PLACE
    assert found.configuration.optimizer_offload == 1.0
    assert whole.configuration.recompute_layers == 4
    assert whole.ignored == ("loss: True",)


@pytest.mark.parametrize(
    ("version", "ep", "etp"),
    [("core_v0.8.0", 2, 2), ("core_v0.9.0", 2, 1), ("core_v0.8.0", 1, 2), ("core_v0.15.0", 1, 2)],
)
def test_experts_are_split_as_their_release_can(tmp_path: Path, version: str, ep: int, etp: int) -> None:
    row = named(tmp_path, "name: Qwen3-30B-A3B, num_experts: 128, num_experts_per_tok: 8, moe_intermediate_size: 768")
    parallel = {"tp": 2, "pp": 1, "ep": ep, "dp": 4}
    software = Software(name="megatron", version=version)
    row = row.model_copy(update={"parallel": parallel, "software": software})
    assert case("mine", row).configuration.etp == etp


PAGE = Path(__file__).parents[2] / "docs" / "reference" / "measurements.md"


def test_the_examples_are_read_as_they_stand(tmp_path: Path) -> None:
    rows, mine = (
        dedent(text) for text in re.findall(r"(?:^ {4}.*\n)+", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    )
    (tmp_path / "runs.yaml").write_text(rows, encoding="utf-8")
    (tmp_path / "mine.yaml").write_text(mine, encoding="utf-8")
    with assuming(tmp_path / "mine.yaml"):
        source = score(tmp_path / "runs.yaml")
    (run,) = source.rows
    assert run.case.ignored == ()
    assert ("gradient_bytes", "2.0") in run.case.documented
    assert run.case.configuration.framework.hide.tp_pieces > 1

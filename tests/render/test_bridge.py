"""Target bridge: every option of Megatron-LM's has its field in Megatron-Bridge, or a reason; what adapters become."""

from __future__ import annotations

import ast
import importlib.util
import shlex
import sys
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest
import yaml

from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InfeasibleError
from symconfig.frameworks.megatron import adapters
from symconfig.render import bridge, own_target, render
from symconfig.render.files import write
from symconfig.verify.shell import dry_run
from tests.render.bash import dry_run as bash_dry_run
from tests.sample_plans import sample_model, sample_plan

BRIDGES = ("core_v0.15.0", "core_v0.16.1")
WHOLE = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def with_adapter(*targets: str, name: str = "llama2-13b", **adapter: Any) -> Any:
    return sample_model(name, adapter={"r": 16, "lora_alpha": 32.0, "target_modules": list(targets), **adapter})


def said(plan: Any) -> list[str]:
    try:
        bridge.sections(plan)
    except InfeasibleError as error:
        return [str(problem) for problem in error.problems]
    return []


@pytest.mark.parametrize("name", [name for name in zoo_models() if load_model(name).adapter is None])
def test_every_zoo_model_is_said_or_refused_by_its_own_fields(name: str) -> None:
    model = load_model(name)
    plan = sample_plan(model, "h100", version=BRIDGES[-1], tp=1, dp=8, pp=1, seq_length=model.max_position_embeddings)
    reasons = said(plan)
    assert not [text for text in reasons if "no field" in text]
    if reasons:  # then no Megatron-LM could be told either, or positions are scaled in a way that Bridge lacks
        assert all("Megatron" in text for text in reasons)
        return
    config = bridge.sections(plan)["model"]
    assert config["num_layers"] == model.num_hidden_layers
    assert config["vocab_size"] >= model.vocab_size
    assert config["share_embeddings_and_output_weights"] is model.tie_word_embeddings


def test_yarn_is_gpt_oss_own() -> None:
    plan = sample_plan("gpt-oss-120b", "h100", version=BRIDGES[-1])
    config = bridge.sections(plan)["model"]
    assert bridge.provider(plan.model)[1] == "GPTOSSProvider"
    assert (config["position_embedding_type"], config["yarn_rotary_scaling_factor"]) == ("yarn", 32.0)
    assert (config["yarn_beta_fast"], config["yarn_beta_slow"]) == (32.0, 1.0)
    assert config["yarn_original_max_position_embeddings"] == 4096
    assert config["window_attn_skip_freq"] == [int(window) for window in plan.model.sliding_layers]


def test_yarn_of_latent_attention_has_all_its_numbers() -> None:
    """As KimiK2Provider has them (models/kimi/kimi_provider.py); three have no option in Megatron-LM."""
    plan = sample_plan(load_model("kimi-k2"), "h100", version=BRIDGES[-1])
    config = bridge.sections(plan)["model"]
    fields = ("rotary_scaling_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
    assert [config[name] for name in fields] == [32.0, 1.0, 1.0, 1.0, 1.0]
    assert config["original_max_position_embeddings"] == 4096
    configs = pytest.importorskip("megatron.core.transformer.transformer_config")
    assert {"beta_fast", "beta_slow", "original_max_position_embeddings"} <= set(
        configs.MLATransformerConfig.__dataclass_fields__
    )


def test_gemma_3_is_its_own_providers() -> None:
    """As Gemma3ModelProvider27B has it, but for windows: Hugging Face's number counts the query's own key."""
    plan = sample_plan(load_model("gemma3-27b"), "h100", version=BRIDGES[-1])
    config = bridge.sections(plan)["model"]
    assert bridge.provider(plan.model)[1] == "Gemma3ModelProvider"
    assert config["rotary_base"] == [10_000.0, 1_000_000.0]
    assert (config["rope_scaling_factor"], config["seq_len_interpolation_factor"]) == (8.0, None)
    assert (config["window_size"], config["interleaved_attn_pattern"]) == (1023, [5, 1])
    assert config["softmax_scale"] == pytest.approx((5376 // 32) ** -0.5)
    assert config["layernorm_zero_centered_gamma"] is config["qk_layernorm"] is True
    train = render(plan, "bridge")["train.py"]
    assert "activation_func=gelu" in train
    assert "transformer_layer_spec" not in train


@pytest.mark.parametrize(
    ("changed", "field"),
    [
        ({"sliding_window_pattern": (False, *[True] * 61)}, "norm_after_sublayer"),
        ({"final_logit_softcapping": 30.0}, "final_logit_softcapping"),
        ({"rope_local_base_freq": None}, "norm_after_sublayer"),
    ],
)
def test_what_gemma_3_has_not_is_refused(changed: dict[str, Any], field: str) -> None:
    model = load_model("gemma3-27b").model_copy(update=changed)
    model.__dict__.pop("sliding_layers", None)
    plan = sample_plan(model, "h100", version=BRIDGES[-1])
    with pytest.raises(InfeasibleError) as caught:
        bridge.sections(plan)
    assert field in {problem.field for problem in caught.value.problems}


def test_a_gate_of_gelu_is_the_fused_kernels_tanh_form() -> None:
    torch = pytest.importorskip("torch")
    kernels = pytest.importorskip("megatron.core.fusions.fused_bias_geglu")
    model = sample_model("llama2-13b", hidden_act="gelu_tanh")
    plan = sample_plan(model, "h100", version=BRIDGES[-1])
    config = bridge.sections(plan)["model"]
    assert (config["gated_linear_unit"], config["bias_activation_fusion"]) == (True, True)
    assert "from torch.nn.functional import gelu" in render(plan, "bridge")["train.py"]
    x = torch.randn(64, 32, dtype=torch.float64)
    gate, up = x.chunk(2, -1)
    real = torch.nn.functional.gelu(gate, approximate="tanh") * up
    with torch.compiler.set_stance("force_eager"):  # compiling takes a minute
        assert torch.allclose(kernels.geglu(x), real, atol=1e-7)


@pytest.mark.parametrize(
    ("targets", "kind", "modules"),
    [
        (
            WHOLE,
            "CanonicalLoRA",
            ("linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2"),
        ),
        (["qkv_proj", "o_proj"], "LoRA", ("linear_qkv", "linear_proj")),
        (["gate_up_proj", "down_proj"], "LoRA", ("linear_fc1", "linear_fc2")),
        (["o_proj"], "LoRA", ("linear_proj",)),
    ],
)
def test_adapters_get_bridges_names(targets: list[str], kind: str, modules: tuple[str, ...]) -> None:
    found = adapters.targets(with_adapter(*targets))
    assert found == adapters.Targets(kind, modules)  # type: ignore[arg-type]
    assert not list(adapters.refusals(with_adapter(*targets)))


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (with_adapter("q_proj", "v_proj"), ["of each part"]),
        (with_adapter("gate_proj"), ["of each part"]),
        (with_adapter("qkv_proj", "gate_proj", "up_proj"), ["either on fused layers"]),
        (with_adapter("o_proj", method="qlora"), ["in 4 bits"]),
        (with_adapter("o_proj", "down_proj", name="qwen3-30b-a3b"), ["all experts"]),
        (with_adapter("o_proj", name="deepseek-v3"), ["latent attention"]),
        (
            with_adapter("q_proj", "down_proj", name="deepseek-v3", method="qlora"),
            ["in 4 bits", "latent attention", "all experts", "of each part"],
        ),
    ],
)
def test_adapters_that_bridge_cannot_train_are_refused_by_all_reasons(model: Any, words: list[str]) -> None:
    assert all(word in reason for word, reason in zip(words, adapters.refusals(model), strict=True))


def test_train_py_holds_the_adapters_and_overrides_do_not(tmp_path: Path) -> None:
    plan = sample_plan(with_adapter(*WHOLE, lora_dropout=0.1), version=BRIDGES[-1])
    files = render(plan, "bridge")
    assert own_target(plan) == "bridge"
    call = next(
        node
        for node in ast.walk(ast.parse(files["train.py"]))
        if isinstance(node, ast.Call) and ast.unparse(node.func) == "CanonicalLoRA"
    )
    given = {word.arg: ast.literal_eval(word.value) for word in call.keywords}
    assert given == {
        "target_modules": [
            "linear_q", "linear_k", "linear_v", "linear_proj", "linear_fc1_gate", "linear_fc1_up", "linear_fc2",
        ],
        "dim": 16,
        "alpha": 32,
        "dropout": 0.1,
    }  # fmt: skip
    assert "peft" not in yaml.safe_load(files["overrides.yaml"])
    assert "finetune(config, forward_step)" in files["train.py"]


@pytest.mark.parametrize("name", ["llama2-13b", "deepseek-v3", "gpt-oss-120b", "mixtral-8x7b", "gpt3-175b"])
def test_yaml_overrides_and_launcher_say_the_same(name: str, tmp_path: Path) -> None:
    plan = sample_plan(name, "h100", version=BRIDGES[-1], recompute="selective", recompute_modules=("core_attn",))
    folder = tmp_path / "out"
    write(render(plan, "bridge"), folder)
    ast.parse((folder / "train.py").read_text())
    config = yaml.safe_load((folder / "overrides.yaml").read_text())
    assert config == bridge.sections(plan)
    words = shlex.split((folder / "overrides.txt").read_text())
    assert [word.partition("=")[0] for word in words] == [f"{a}.{b}" for a, fields in config.items() for b in fields]
    assert "model.recompute_modules=[core_attn]" in words
    done = dry_run(folder, "launch.sh", 20.0)
    assert done.status == 0
    assert str(folder / "train.py") in done.words
    assert str(folder / "overrides.yaml") in done.words


def program(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """train.py as a module, over stand-ins for all that it imports of Bridge, Megatron-Core and torch."""
    tree = ast.parse((folder / "train.py").read_text())
    for imported in [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]:
        parts = (imported.module or "").split(".")
        for length in range(1, len(parts) + 1):
            monkeypatch.setitem(sys.modules, ".".join(parts[:length]), MagicMock())
    utils = sys.modules["megatron.bridge.training.utils.omegaconf_utils"]
    utils.process_config_with_overrides = lambda config, *_: config  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location("train_of_a_plan", folder / "train.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_folder_is_fine_tuned_on_and_a_prefix_is_a_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = sample_plan(with_adapter(*WHOLE), version=BRIDGES[-1])
    write(render(plan, "bridge"), tmp_path / "out")
    train, folder = program(tmp_path / "out", monkeypatch), tmp_path / "examples"
    train.dataset([str(tmp_path / "my_text_document")], "99,1,0")
    assert (train.GPTDatasetConfig.call_count, train.FinetuningDatasetConfig.call_count) == (1, 0)
    folder.mkdir()
    with pytest.raises(SystemExit, match=r"no training\.jsonl in the folder"):
        train.dataset([str(folder)], "99,1,0")
    (folder / "training.jsonl").touch()
    train.dataset([str(folder)], "99,1,0")
    assert train.FinetuningDatasetConfig.call_args.kwargs["dataset_root"] == str(folder)
    assert "training.jsonl" in (tmp_path / "out" / "REPORT.md").read_text()


@pytest.mark.parametrize("name", ["it's/x", 'a "b" $c', "back\\", "-dash", "a=b,c"])
def test_any_name_of_weights_and_tokenizers_arrives(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = render(sample_plan(with_adapter(*WHOLE), version=BRIDGES[-1]), "bridge")
    words = bash_dry_run(
        files, tmp_path, "launch.sh", "train.train_iters=3", PRETRAINED_CHECKPOINT=name, DATA_PATH="data",
        TOKENIZER_MODEL=name,
    )  # fmt: skip
    train = program(tmp_path, monkeypatch)
    arguments = train.arguments_of(words[words.index(str(tmp_path / "train.py")) + 1 :])
    config = train.configuration(arguments)
    assert (config.checkpoint.pretrained_checkpoint, config.tokenizer.tokenizer_model) == (name, name)
    assert (arguments.overrides, arguments.data_path) == (["train.train_iters=3"], ["data"])


def test_texts_are_quoted_as_hydra_reads_them() -> None:
    said = bridge.overrides(
        {
            "a": {
                "layout": "Et*3|(tt|)*2L",
                "name": "it's",
                "flag": True,
                "none": None,
                "list": ["core_attn", 1],
                "small": 1e-05,
                "word": "adam",
                "number": "3",
                "windows": "c:\\x\\",
            }
        }
    )
    assert said == [
        "a.layout='Et*3|(tt|)*2L'", "a.name='it\\'s'", "a.flag=true", "a.none=null", "a.list=[core_attn,1]",
        "a.small=1e-05", "a.word=adam", "a.number='3'", "a.windows='c:\\x\\\\'",
    ]  # fmt: skip

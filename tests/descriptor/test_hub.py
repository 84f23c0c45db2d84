"""Models by their ids on Hugging Face's hub: the zoo's, those in huggingface_hub's cache, and where to get others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from symconfig.descriptor import hub
from symconfig.descriptor.load import load_model, zoo_models
from symconfig.errors import InputError
from tests.descriptor.small_configs import tiny_config

ID, REVISION = "someone/Tiny-1B", "0123456789" * 4


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache of huggingface_hub, and a folder of one's own to be in."""
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "hub"


def put(cache: Path, name: str = ID, revision: str = REVISION, **fields: object) -> Path:
    """A snapshot as huggingface_hub keeps it."""
    model = cache / f"models--{name.replace('/', '--')}"
    snapshot = model / "snapshots" / revision
    snapshot.mkdir(parents=True)
    (model / "refs").mkdir(exist_ok=True)
    (model / "refs" / "main").write_text(revision)
    (snapshot / "config.json").write_text(json.dumps({**tiny_config("llama", 0), **fields}))
    return snapshot / "config.json"


@pytest.mark.parametrize("name", ["meta-llama/Llama-3.1-70B", "META-LLAMA/llama-3.1-70b"])
def test_an_id_of_the_zoo_is_the_zoo_s_model_whatever_the_cache_has(name: str, cache: Path) -> None:
    put(cache, name)
    assert load_model(name) == load_model("llama3.1-70b")


def test_every_id_of_the_zoo_is_that_of_one_model() -> None:
    ids = [known.lower() for _, known in hub.of_zoo()]
    assert len(set(ids)) == len(ids)
    for name in zoo_models():
        model = load_model(name)
        if model.adapter is None and model.huggingface_id is not None:
            assert dict(hub.of_zoo())[name] == model.huggingface_id
            assert hub.is_id(model.huggingface_id)


def test_the_main_branch_in_the_cache_is_read_and_named_by_the_id_alone(cache: Path) -> None:
    put(cache, _name_or_path="/somewhere/else")
    model = load_model(ID)
    assert (model.name, model.huggingface_id) == ("Tiny-1B", ID)
    assert model.source == f"imported from https://huggingface.co/{ID}"
    assert model.hidden_size == tiny_config("llama", 0)["hidden_size"]
    assert str(cache) not in model.model_dump_json()


def test_the_same_config_in_another_cache_is_the_same_model(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache)
    first = load_model(ID)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "other"))
    put(tmp_path / "other", revision="f" * 40)
    assert load_model(ID) == first


@pytest.mark.parametrize(("variable", "inside"), [
    ("HF_HUB_CACHE", ""), ("HUGGINGFACE_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub"),
    ("HOME", ".cache/huggingface/hub"),
])  # fmt: skip
def test_the_cache_lies_where_huggingface_hub_has_it(
    variable: str, inside: str, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_HUB_CACHE")
    monkeypatch.setenv(variable, str(tmp_path / "set"))
    put(tmp_path / "set" / inside)
    assert load_model(ID).huggingface_id == ID


def test_a_path_that_exists_wins(cache: Path) -> None:
    put(cache)
    own = Path("someone") / "Tiny-1B"
    own.mkdir(parents=True)
    (own / "config.json").write_text(json.dumps(tiny_config("qwen2", 0)))
    assert load_model(ID).model_type == "qwen2"
    assert load_model(ID).huggingface_id is None


def test_an_id_that_is_nowhere_says_where_its_config_comes_from(cache: Path) -> None:
    with pytest.raises(InputError) as caught:
        load_model("mistralai/Mistral-7B-v0.1")
    assert str(caught.value) == (
        "model: there is no such file, the zoo has no model with this id, no config.json of it is in "
        f"{cache}, and https://huggingface.co cannot be reached from here (got mistralai/Mistral-7B-v0.1). Try: "
        "hf download mistralai/Mistral-7B-v0.1 config.json, or --model "
        "FOLDER with https://huggingface.co/mistralai/Mistral-7B-v0.1/resolve/main/config.json in it."
    )


class Hub(BaseHTTPRequestHandler):
    """A hub with one model, and one that is not for everybody."""

    def do_HEAD(self) -> None:
        self.answer(body=False)

    def do_GET(self) -> None:
        self.answer(body=True)

    def answer(self, *, body: bool) -> None:
        text = json.dumps(tiny_config("llama", 0)).encode()
        found = self.path == f"/{ID}/resolve/main/config.json"
        self.send_response(200 if found else 401 if "Gated" in self.path else 404)
        if found:
            for name, value in {"ETag": '"e"', "X-Repo-Commit": REVISION, "Content-Length": str(len(text))}.items():
                self.send_header(name, value)
        else:
            self.send_header("X-Error-Code", "GatedRepo" if "Gated" in self.path else "RepoNotFound")
            self.send_header("Content-Length", "0")
        self.end_headers()
        if found and body:
            self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Say nothing on standard error."""


@pytest.fixture
def endpoint(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a hub on this machine."""
    constants = pytest.importorskip("huggingface_hub.constants", reason="huggingface_hub is not installed")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        address = f"http://127.0.0.1:{server.server_port}"
        monkeypatch.setenv("HF_ENDPOINT", address)
        Thread(target=server.serve_forever, daemon=True).start()
        yield address
        server.shutdown()


def test_a_config_that_the_cache_has_not_is_fetched_once(cache: Path, endpoint: str) -> None:
    model = load_model(ID)
    assert (model.name, model.huggingface_id) == ("Tiny-1B", ID)
    assert hub.cached(ID) is not None
    assert load_model(ID) == model


@pytest.mark.parametrize(
    ("name", "said"), [("no/Body", "has no such model for everybody"), ("a/Gated", "its owner lets")]
)
def test_what_the_hub_does_not_give_is_said_in_a_sentence(name: str, said: str, cache: Path, endpoint: str) -> None:
    with pytest.raises(InputError, match=f"{endpoint} .*{said}"):
        load_model(name)


def test_a_tuned_model_of_the_zoo_is_pointed_out() -> None:
    with pytest.raises(InputError, match=r"or --model llama3\.1-8b, which is tuned otherwise"):
        load_model("meta-llama/Llama-3.1-8B-Instruct")


@pytest.mark.parametrize("broken", ["no ref", "no snapshot", "no config.json", "odd ref"])
def test_a_cache_without_the_file_is_as_none(broken: str, cache: Path) -> None:
    config = put(cache)
    ref = config.parents[2] / "refs" / "main"
    if broken == "no ref":
        ref.unlink()
    elif broken == "odd ref":
        ref.write_text("../../..")
    else:
        config.unlink()
        if broken == "no snapshot":
            config.parent.rmdir()
    with pytest.raises(InputError, match="hf download someone/Tiny-1B"):
        load_model(ID)


def test_what_is_wrong_in_a_cached_config_is_said_with_its_file(cache: Path) -> None:
    config = put(cache, model_type="brand_new")
    with pytest.raises(InputError) as caught:
        load_model(ID)
    assert str(config) in str(caught.value)


@pytest.mark.parametrize(
    "name", ["a/b/c", "/a/b", "./a/b", "a/b.yaml", "a/b.json", "a", "a b/c", "a/", "é/x", "a/" + "x" * 96]
)
def test_other_names_are_no_ids(name: str) -> None:
    assert not hub.is_id(name)


def test_an_adapter_may_have_an_id_as_its_base(cache: Path, tmp_path: Path) -> None:
    put(cache)
    file = tmp_path / "a.yaml"
    file.write_text(
        "schema: symconfig.model/1\nname: a\nsource: s\nbase: someone/Tiny-1B\n"
        "adapter:\n  r: 4\n  lora_alpha: 8.0\n  target_modules: [q_proj]\n"
    )
    model = load_model(str(file))
    assert (model.name, model.huggingface_id) == ("a", ID)

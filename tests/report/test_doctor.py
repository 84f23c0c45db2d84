"""What `symconfig doctor` finds."""

from __future__ import annotations

from pathlib import Path

import pytest

from symconfig import install
from symconfig.descriptor.load import zoo_clusters, zoo_models
from symconfig.report import doctor
from symconfig.report.doctor import examine, sites
from symconfig.report.grid import plain


def test_a_working_installation_is_healthy() -> None:
    health = examine()
    assert health["healthy"]
    assert (health["models"], health["clusters"]) == (zoo_models(), zoo_clusters())


def test_a_missing_package_makes_it_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "BASE", (*doctor.BASE, "no-such-package"))
    assert not examine()["healthy"]
    assert "does not work here" in plain(doctor.blocks({**examine(), "sites": []}))


def test_the_commands_are_those_of_the_page_of_installing() -> None:
    text = (Path(__file__).parents[2] / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    for command in (*install.EXTRA.split(" && "), install.MEGATRON):
        assert f"\n{command}" in text


def test_options_that_want_something_of_the_site_are_listed_with_what_is_here(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "deep_ep").mkdir()
    (tmp_path / "deep_ep" / "__init__.py").write_text("raise SystemExit  # it is looked for, not imported\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    found = {(site["option"], site["wants"]): site["here"] for site in sites()}
    assert found["deepep", "deep_ep"] is True
    assert found["hybridep", "deep_ep, with HybridEPBuffer"] is False
    assert found["cuda_graphs", "NCCL_GRAPH_REGISTER=0"] is None
    shown = " ".join(plain(doctor.blocks({**examine(), "sites": list(sites())})).split())
    assert "needed where the job runs here" in shown
    assert "HybridEP's kernels for the experts' tokens hybridep deep_ep, with HybridEPBuffer not found" in shown

"""Only a small regular text file that stays in its folder is opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from symconfig.errors import InputError
from symconfig.existing.launch.text import LIMIT_BYTES, below, instead, open_text


def refusal(path: Path, root: Path) -> str:
    with pytest.raises(InputError) as caught:
        open_text(path, root=root)
    return str(caught.value)


def test_a_text_file_comes_as_its_bytes(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_bytes("écho\r\n".encode())
    text = open_text(tmp_path / "a.sh", root=tmp_path)
    assert (text.file, text.data) == (str(tmp_path / "a.sh"), "écho\r\n".encode())


def test_what_is_no_small_text_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").write_bytes(b"a\0b")
    (tmp_path / "latin").write_bytes(b"ok\n\xe9t\xe9\n")
    with open(tmp_path / "large", "wb") as file:
        file.truncate(50 << 20)
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    assert "binary" in refusal(tmp_path / "zero", tmp_path)
    assert "latin:2" in refusal(tmp_path / "latin", tmp_path)
    large = refusal(tmp_path / "large", tmp_path)
    assert "52,428,800 bytes" in large
    assert f"{LIMIT_BYTES:,}" in large
    assert "pipe" in refusal(tmp_path / "pipe", tmp_path)
    assert "folder" in refusal(tmp_path, tmp_path)
    assert "does not exist" in refusal(tmp_path / "none", tmp_path)
    assert "link that leads back" in refusal(tmp_path / "round", tmp_path)
    assert "device" in refusal(Path("/dev/zero"), Path("/dev"))


def test_links_may_not_lead_out(tmp_path: Path) -> None:
    inside = tmp_path / "job"
    inside.mkdir()
    (tmp_path / "outside.sh").write_text("A=1\n")
    (inside / "real.sh").write_text("B=1\n")
    (inside / "good.sh").symlink_to("real.sh")
    (inside / "bad.sh").symlink_to(tmp_path / "outside.sh")
    (inside / "folder").symlink_to(tmp_path)
    assert open_text(inside / "good.sh", root=inside).data == b"B=1\n"
    assert f"lies outside of {inside}" in refusal(inside / ".." / "outside.sh", inside)
    with below(tmp_path):
        assert open_text(inside / ".." / "outside.sh", root=inside).data == b"A=1\n"
        assert open_text(inside / "bad.sh", root=inside).data == b"A=1\n"
    assert "leads out of" in refusal(inside / "bad.sh", inside)
    assert "leads out of" in refusal(inside / "folder" / "outside.sh", inside)


def test_other_bytes_can_stand_for_a_files_own(tmp_path: Path) -> None:
    path = tmp_path / "a.sh"
    path.write_text("A=1\n")
    with instead({str(path): b"A=2\n"}):
        assert open_text(path, root=tmp_path).data == b"A=2\n"
    assert open_text(path, root=tmp_path).data == b"A=1\n"

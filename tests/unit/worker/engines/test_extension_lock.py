"""Compiling a torch extension: one at a time, and not held up by what a killed compile left."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from worker.engines.exllamav3 import lock_extension
from worker.errors import LoadError


@pytest.mark.parametrize("own", [True, False])
def test_a_lock_that_was_left_is_taken_away(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, own: bool) -> None:
    if own:
        monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
        folder = tmp_path / "ext"
    else:
        monkeypatch.delenv("TORCH_EXTENSIONS_DIR", raising=False)
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        python = f"py{sys.version_info.major}{sys.version_info.minor}_cu128"
        folder = tmp_path / "torch_extensions" / python / "ext"
    other = folder.parent / "other"
    for each in (folder, other):
        each.mkdir(parents=True)
        (each / "lock").touch()
    (folder / "ext.so").touch()
    with lock_extension("ext"):
        assert [each.name for each in folder.iterdir()] == ["ext.so"]
        assert (other / "lock").exists()


def test_a_second_one_waits(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path))
    begun = threading.Event()

    def second() -> None:
        with lock_extension("ext"):
            begun.set()

    thread = threading.Thread(target=second)
    with lock_extension("ext"):
        thread.start()
        (tmp_path / "ext").mkdir()
        (tmp_path / "ext" / "lock").touch()
        assert not begun.wait(0.2)
        assert (tmp_path / "ext" / "lock").exists(), "of the first one, which is still at it"
    assert begun.wait(5)
    thread.join()


def test_a_folder_that_cannot_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file"))
    with pytest.raises(LoadError, match="where torch keeps what it compiles"), lock_extension("ext"):
        pass

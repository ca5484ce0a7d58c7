"""A folder whose files are broken is refused with the file's name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from worker.errors import LoadError
from worker.hf.folder import HFFolder


def folder(path: Path, tokenizer: object) -> HFFolder:
    (path / "tokenizer.json").write_text("{}")
    (path / "tokenizer_config.json").write_text(json.dumps(tokenizer))
    return HFFolder(path, path)


@pytest.mark.parametrize("entry", [{"template": "x"}, {"name": "x"}, "x", 7])
def test_a_template_without_its_name_or_text_is_refused(entry: object, tmp_path: Path) -> None:
    with pytest.raises(LoadError, match="`chat_template`"):
        _ = folder(tmp_path, {"chat_template": [entry]}).templates


def test_a_template_that_is_not_utf_8_is_refused(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(LoadError, match=r"chat_template\.jinja is not UTF-8"):
        _ = folder(tmp_path, {}).templates

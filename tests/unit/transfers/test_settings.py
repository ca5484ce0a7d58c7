"""The settings of transfers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from transfers.settings import TransfersSettings


def settings(**values: Any) -> TransfersSettings:
    return TransfersSettings.model_validate(values)


def test_downloads_go_into_the_first_models_folder() -> None:
    assert settings(models="/a, /b").models_folder == Path("/a")
    assert settings(transfers_local_folders="/x,/y").local_folders == (Path("/x"), Path("/y"))
    assert settings().local_folders == ()


def test_the_token_of_the_hub_is_the_variables_or_the_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    assert settings(hub_token_file=file).read_hub_token() is None
    file.write_text("hf_0123456789abcdef\n")
    named = settings(hub_token_file=file)
    assert named.read_hub_token() == "hf_0123456789abcdef"
    file.write_text("hf_fedcba9876543210\n")
    assert named.read_hub_token() == "hf_fedcba9876543210"
    assert settings(hub_token=" hf_abc ", hub_token_file=file).read_hub_token() == "hf_abc"
    assert settings().read_hub_token() is None


def test_no_text_of_the_settings_has_the_token() -> None:
    assert "hf_secret" not in repr(settings(hub_token="hf_secret"))


@pytest.mark.parametrize(
    "values",
    [
        {"models": " , "},
        {"transfers_allow_hosts": "a/b"},
        {"hub_endpoint": "http://mirror.example"},
        {"hub_endpoint": "ftp://mirror.example"},
        {"hub_endpoint": "mirror"},
        {"transfers_ollama_registry": "http://10.0.0.1"},
        {"transfers_parallel": 0},
        {"transfers_keep_free_gb": -1},
    ],
)
def test_what_cannot_be_used_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        settings(**values)


def test_a_mirror_without_encryption_has_to_be_named() -> None:
    named = settings(hub_endpoint="http://mirror.example:81", transfers_allow_hosts="mirror.example:81")
    assert named.allowed.has("mirror.example", 81)

"""Code that comes with a model: an engine that might run it does not get the model, unless the definition trusts it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.engines import ENGINES
from controller.runtimes.model_files import check_model
from tests.support.definitions import define

CODE = {"auto_map": {"AutoConfig": "configuration_x.XConfig", "AutoModel": "modeling_x.XModel"}}


def preflight_error(root: Path, backend: str, **fields: Any) -> str | None:
    """Of a model in the second models folder."""
    (root / "first").mkdir(exist_ok=True)
    roots = ModelRoots((root / "first", root))
    return check_model(roots, ENGINES[backend], define(backend, **fields))


def write_json(root: Path, name: str, content: object) -> None:
    (root / "m").mkdir(exist_ok=True)
    (root / "m" / "config.json").write_text("{}")
    (root / "m" / name).write_text(content if isinstance(content, str) else json.dumps(content))


@pytest.mark.parametrize("backend", ["vllm", "vllm_serve"])
@pytest.mark.parametrize(
    ("file", "content", "name"),
    [
        ("config.json", CODE, "configuration_x.XConfig"),
        ("config.json", {"vision_config": {"layers": [1, CODE]}}, "configuration_x.XConfig"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["tok.Slow", None]}}, "tok.Slow"),
        ("processor_config.json", {"auto_map": {"AutoProcessor": "p.P"}}, "p.P"),
        ("preprocessor_config.json", {"auto_map": {"AutoImageProcessor": "someone/else--p.P"}}, "someone/else--p.P"),
        ("video_preprocessor_config.json", {"auto_map": "\x1b[2J"}, r"'\x1b[2J'"),
    ],
)
def test_a_folder_that_names_code_of_its_own_is_refused(
    tmp_path: Path, backend: str, file: str, content: object, name: str
) -> None:
    write_json(tmp_path, file, content)
    assert preflight_error(tmp_path, backend) == (
        f"model_path: m brings code of its own along ({name}, in the `auto_map` of {file}), which the engine may run:"
        " set vllm_trust_remote_code to true if you trust it, or take `auto_map` out of that file if the engine knows"
        " such models by itself"
    )
    assert preflight_error(tmp_path, backend, vllm_trust_remote_code=True) is None
    assert preflight_error(tmp_path, backend, extra_args=["--trust-remote-code"]) is None


@pytest.mark.parametrize("content", [{}, {"auto_map": {}}, {"auto_map": None}, {"model_type": "auto_map"}])
def test_a_folder_without_code_is_taken(tmp_path: Path, content: object) -> None:
    write_json(tmp_path, "config.json", content)
    assert preflight_error(tmp_path, "vllm") is None


@pytest.mark.parametrize(
    ("content", "reason"), [("[" * 100_000, "config.json is not JSON"), ("[1]", "config.json is not a JSON object")]
)
def test_a_configuration_that_cannot_be_read_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    write_json(tmp_path, "config.json", content)
    expected = f"model_path: m has a file that cannot be looked through for code: {reason}"
    assert preflight_error(tmp_path, "vllm") == expected
    assert preflight_error(tmp_path, "vllm", vllm_trust_remote_code=True) is None


def test_nothing_changes_for_an_engine_that_runs_no_code_of_a_model(tmp_path: Path) -> None:
    write_json(tmp_path, "config.json", CODE)
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    (tmp_path / "m" / "model.bin").write_text("x")
    assert preflight_error(tmp_path, "exllamav3", gpus=1) is None
    assert preflight_error(tmp_path, "ct2") is None


def test_the_assistant_s_folder_is_looked_through_too(tmp_path: Path) -> None:
    write_json(tmp_path, "config.json", {})
    (tmp_path / "assistant").mkdir()
    (tmp_path / "assistant" / "config.json").write_text(json.dumps(CODE))
    for name, is_refused in (
        (str(tmp_path / "assistant"), True),
        (str(tmp_path / "m"), False),
        ("org/assistant", False),
        ("/models/as-the-engine-sees-it", False),
    ):
        fields = {"vllm_speculative_method": "mtp", "vllm_speculative_model": name}
        found = str(preflight_error(tmp_path, "vllm", **fields))
        assert found.startswith(f"vllm_speculative_model: {name} brings code of its own along") == is_refused, found
        assert preflight_error(tmp_path, "vllm", **fields, vllm_trust_remote_code=True) is None

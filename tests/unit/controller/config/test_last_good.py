"""The last good state on disk."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from contract.status import SCHEMA_VERSION
from controller.config.debounce import FILE_NAME, LastGoodError, load_last_good, save_last_good
from tests.support.definitions import MODELS_ROOT, parse_text

HASH = "0123456789abcdef" * 4
GOOD = parse_text(
    "models: {a: {backend: stub, stub_text: 'Grüße 😀'}, b: {model_path: /srv/models/b.gguf}}\n"
    f"keys: {{ci: {{sha256: '{HASH}', expires: 2027-01-31}}}}\n"
    "tools: {calculate: {}, write_file: {folder: /srv, write: true}}\n"
    "mcp_servers: {a: {url: 'https://a/mcp', headers: {X: y}}, b: {command: [b], env: {C: d}}}"
)


def test_what_was_saved_is_what_is_loaded_and_only_the_owner_may_read_it(tmp_path: Path) -> None:
    save_last_good(tmp_path, GOOD.declared_models, GOOD.declared_keys, 5.0, GOOD.tools)
    settled = load_last_good(tmp_path, MODELS_ROOT)
    assert settled is not None
    for part in ("definitions", "declared_models", "tools", "keys", "declared_keys"):
        assert getattr(settled, part) == getattr(GOOD, part), part
    assert (settled.tools.servers["b"].env, settled.keys["ci"].sha256, settled.missing) == ({"C": "d"}, HASH, {})
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


def test_nothing_stored_is_not_no_models(tmp_path: Path) -> None:
    assert load_last_good(tmp_path, MODELS_ROOT) is None
    save_last_good(tmp_path, {}, {}, now=5.0)
    settled = load_last_good(tmp_path, MODELS_ROOT)
    assert settled is not None
    assert settled.definitions == {}


def stored(**fields: Any) -> str:
    return json.dumps({"schema_version": 1, "saved_at": 1.0, "models": {}} | fields)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *(
            (text, "not a stored state of Roundhouse")
            for text in ("", '{"schema_version": 1', '{"schema_version": 1, "saved_at": 1.0}')
        ),
        (stored(schema_version=SCHEMA_VERSION + 1), f"a newer Roundhouse (schema_version {SCHEMA_VERSION + 1}"),
        (stored(models={"a": {"backend": "gone"}}), "models.a.backend: unknown backend `gone`"),
        (stored(keys={"ci": {"sha256": "rh-x"}}), "keys.ci.sha256: looks like the secret itself"),
    ],
)
def test_what_cannot_be_used_says_why_and_names_the_file(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / FILE_NAME).write_text(content)
    with pytest.raises(LastGoodError) as raised:
        load_last_good(tmp_path, MODELS_ROOT)
    assert reason in str(raised.value)
    assert str(tmp_path / FILE_NAME) in str(raised.value)


def test_what_an_older_version_stored_has_no_keys(tmp_path: Path) -> None:
    (tmp_path / FILE_NAME).write_text(stored(models={"a": {"backend": "stub"}}))
    settled = load_last_good(tmp_path, MODELS_ROOT)
    assert settled is not None
    assert (list(settled.definitions), settled.keys, settled.declared_keys) == (["a"], {}, {})


def test_a_failed_save_leaves_the_old_state(tmp_path: Path) -> None:
    save_last_good(tmp_path, GOOD.declared_models, GOOD.declared_keys, now=5.0)
    with pytest.raises(TypeError):
        save_last_good(tmp_path, {"a": {"env": object()}}, {}, now=6.0)
    settled = load_last_good(tmp_path, MODELS_ROOT)
    assert settled is not None
    assert settled.definitions == GOOD.definitions

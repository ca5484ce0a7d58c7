"""`roundhouse key new`, what `validate` and `plan --diff` say of keys, and docs/keys.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest
from typer.testing import CliRunner

from controller.artifacts.model_roots import ModelRoots
from controller.cli.app import app, run
from controller.cli.exit_codes import ExitCode
from controller.config.parse import parse_folder
from controller.config.read import read_folder
from controller.schema.admin import DryRun, KeyChange, ToolChange
from controller.schema.keys import KeyDefinition, KeyScope, ServiceTier
from controller.schema.status import PlanView
from controller.status.permissions import build_keys
from gateway.tenancy.api_keys import KeyRing
from tests.fakes.fake_control_api import FakeControlApi
from tests.support.cli import roundhouse
from tests.support.doc_tables import DOCS, field_rows, rows_of

SECRET = re.compile(r"rh-[A-Za-z0-9_-]{43}")


def declared(folder: Path, lines: str) -> KeyRing:
    """The ring of a folder whose keys stand in these lines."""
    (folder / "models.yaml").write_text("models: {}\n")
    (folder / "keys.yaml").write_text(lines)
    parsed = parse_folder(read_folder(folder), ModelRoots((folder,)))
    assert parsed.is_valid, parsed.problems
    return KeyRing.of(build_keys(parsed.keys))


def read_folder_keys(folder: Path) -> Mapping[str, KeyDefinition]:
    """The keys of a folder."""
    return parse_folder(read_folder(folder), ModelRoots((folder,))).keys


def test_the_lines_are_a_file_and_the_secret_opens_the_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "new", "ci"]) == ExitCode.DONE
    shown = capsys.readouterr()
    [secret] = SECRET.findall(shown.err)
    assert secret not in shown.out
    assert shown.out == f"keys:\n  ci:\n    sha256: {sha256(secret.encode()).hexdigest()}\n"
    ring = declared(tmp_path, shown.out)
    assert ring.authenticate_key([(b"authorization", b"Bearer " + secret.encode())], 0.0).name == "ci"


def test_two_secrets_are_never_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    for _ in range(3):
        run(["key", "new", "ci"])
    assert len(set(SECRET.findall(capsys.readouterr().err))) == 3


@pytest.mark.parametrize("name", ["ci", "1", "null", "true", "1e5", "0x1f", "a.b@c-d_e", "12345678901234567890"])
def test_every_option_comes_to_a_field(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = (
        "--scope inference --scope admin --model gem* --model * --model org/chat:q4 --tool * --tool calculate "
        "--tenant 42 --weight 2.5 --rpm 60 "
        "--tpm 100000 --concurrency 4 --expires 2027-01-31T18:00:00+01:00 --tier priority --tier flex"
    )
    assert run(["key", "new", name, *options.split()]) == ExitCode.DONE
    caller = declared(tmp_path, capsys.readouterr().out).by_name[name]
    assert (caller.tenant, caller.weight, sorted(caller.scopes)) == ("42", 2.5, ["admin", "inference"])
    assert read_folder_keys(tmp_path)[name].tools == ["*", "calculate"]
    assert (caller.requests_per_minute, caller.tokens_per_minute, caller.concurrency) == (60, 100000, 4)
    assert (caller.expires_at, caller.tier_rank("priority"), caller.tier_rank("default")) == (1801414800.0, 0, 2)


def test_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "new", "ci", "--rpm", "5", "--json"]) == ExitCode.DONE
    shown = capsys.readouterr()
    made = json.loads(shown.out)
    assert made["name"] == "ci"
    assert made["key"] == {"sha256": sha256(made["secret"].encode()).hexdigest(), "requests_per_minute": 5}
    assert KeyDefinition.model_validate(made["key"])
    assert shown.err == ""


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (["a b"], "keys.a b: the name must begin with a letter or digit and hold only letters, digits and . _ @ -"),
        ([""], "the name must have at least 1 character(s)"),
        (["ci", "--scope", "x"], "keys.ci.scopes[0]: must be `inference` or `admin`, is `x`"),
        (["ci", "--weight", "0"], "keys.ci.weight: must be more than 0, is 0"),
        (["ci", "--weight", "nan"], "keys.ci.weight: must"),
        (["ci", "--rpm", "0"], "keys.ci.requests_per_minute: must be at least 1, is 0"),
        (["ci", "--expires", "soon"], "keys.ci.expires: must be a date such as 2027-01-31"),
        (["ci", "--model", "a b"], "keys.ci.models[0]: no model can have such a name: `a b`"),
        (["ci", "--tool", "calculat"], "keys.ci.tools[0]: there is no built-in tool `calculat`; did you mean"),
        ([], "Missing argument"),
    ],
)
def test_what_no_key_can_be(arguments: list[str], error: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["key", "new", *arguments]) == ExitCode.USAGE
    shown = capsys.readouterr()
    assert shown.out == ""
    assert error in shown.err
    assert SECRET.search(shown.err) is None


def test_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["key", "new", "ci"]) == ExitCode.DONE
    assert list(tmp_path.iterdir()) == []


def test_validate_counts_keys(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.yaml").write_text(
        f"models: {{m: {{backend: stub}}}}\nkeys: {{b: {{sha256: {'b' * 64}}}, a: {{sha256: {'a' * 64}}}}}\n"
    )
    assert run(["validate", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}: good; models: m; 2 keys\n"
    assert run(["validate", str(tmp_path), "--json"]) == ExitCode.DONE
    assert json.loads(capsys.readouterr().out)["keys"] == ["a", "b"]


async def test_keys_that_proposed_files_would_change(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "keys.yaml").write_text("keys: {}\n")
    keys = [
        KeyChange(key="ci", change="edited", fields=["sha256", "weight"]),
        KeyChange(key="old", change="removed", fields=["sha256"]),
    ]
    async with FakeControlApi(folder / "controller.sock") as api:
        api.dry_run = DryRun(ok=True, problems=[], changes=[], keys=keys, plan=PlanView(generation=1))
        assert await roundhouse(api, "plan", "--diff", str(tmp_path / "keys.yaml")) == ExitCode.PENDING
    assert capsys.readouterr().out == "key ci: edited: sha256, weight\nkey old: removed\n"


async def test_tools_that_proposed_files_would_change(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tools.yaml").write_text("tools: {}\n")
    tools = [
        ToolChange(kind="tool", name="calculate", change="added", fields=[]),
        ToolChange(kind="mcp_server", name="a", change="edited", fields=["headers", "url"]),
        ToolChange(kind="mcp_server", name="b", change="removed", fields=["command"]),
    ]
    async with FakeControlApi(folder / "controller.sock") as api:
        api.dry_run = DryRun(ok=True, problems=[], changes=[], tools=tools, plan=PlanView(generation=1))
        assert await roundhouse(api, "plan", "--diff", str(tmp_path / "tools.yaml")) == ExitCode.PENDING
    assert (
        capsys.readouterr().out == "tool calculate: added\nMCP server a: edited: headers, url\nMCP server b: removed\n"
    )


def test_validate_counts_tools_and_servers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "models.yaml").write_text(
        "models: {}\ntools: {calculate: {}}\nmcp_servers: {b: {command: [b]}, a: {url: https://a/}}\n"
    )
    assert run(["validate", str(tmp_path)]) == ExitCode.DONE
    assert capsys.readouterr().out == f"{tmp_path}: good; models: none; 1 tool; 2 MCP servers\n"
    assert run(["validate", str(tmp_path), "--json"]) == ExitCode.DONE
    shown = json.loads(capsys.readouterr().out)
    assert (shown["tools"], shown["mcp_servers"]) == (["calculate"], ["a", "b"])


# The docs.


def test_the_fields_in_the_docs() -> None:
    assert rows_of("keys.md", "Fields") == field_rows(KeyDefinition)


def test_scopes_tiers_and_headers_in_the_docs() -> None:
    text = (DOCS / "keys.md").read_text()
    for word in (*get_args(KeyScope), *get_args(ServiceTier)):
        assert f"`{word}`" in text
    for what in ("requests", "tokens"):
        for which in ("limit", "remaining", "reset"):
            assert f"`x-ratelimit-{which}-{what}`" in text
    assert "`X-RateLimit-Client`" in text
    assert "](keys.md" in (DOCS / "models.md").read_text()


def test_every_option_is_in_the_docs() -> None:
    shown = CliRunner().invoke(app, ["key", "new", "--help"]).output
    text = (DOCS / "cli.md").read_text()
    assert [option for option in re.findall(r"--[a-z-]+", shown) if option not in text and option != "--help"] == []

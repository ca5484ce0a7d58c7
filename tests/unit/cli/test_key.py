"""`roundhouse key`, and docs/keys.md."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import get_args

import pytest

from cli.output import ExitCode
from contract.declarations import DeclarationsView, RuntimeDeclaration
from contract.keys import KeyDefinition, KeyScope, ServiceTier
from controller.artifacts.model_roots import ModelRoots
from controller.config.parse import parse_folder, read_folder
from controller.routing_table import build_keys
from gateway.tenancy.api_keys import KeyRing
from tests.fakes.fake_control_api import FakeControlApi, model, status
from tests.support.cli import Cli, Roundhouse
from tests.support.doc_tables import DOCS, field_rows, rows_of

SECRET = re.compile(r"rh-[A-Za-z0-9_-]{43}")


def declare(folder: Path, lines: str) -> Mapping[str, KeyDefinition]:
    """The keys of a folder that declares them by these lines."""
    (folder / "models.yaml").write_text("models: {}\n")
    (folder / "keys.yaml").write_text(lines)
    parsed = parse_folder(read_folder(folder), ModelRoots((folder,)))
    assert parsed.is_valid, parsed.problems
    return parsed.keys


def test_the_lines_are_a_file_and_the_secret_opens_the_key(
    tmp_path: Path, roundhouse: Roundhouse, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = roundhouse("key", "new", "ci")
    [secret] = SECRET.findall(err)
    assert (code, out) == (ExitCode.DONE, f"keys:\n  ci:\n    sha256: {sha256(secret.encode()).hexdigest()}\n")
    assert secret not in out
    assert "every request needs one" in err
    assert "`roundhouse key new me --scope inference --scope admin --tenant default`" in err
    assert list(tmp_path.iterdir()) == [], "nothing is written"
    ring = KeyRing.of(build_keys(declare(tmp_path, out)))
    assert ring.authenticate_key([(b"authorization", b"Bearer " + secret.encode())], 0.0).name == "ci"
    assert SECRET.findall(roundhouse("key", "new", "ci").err) != [secret]


@pytest.mark.parametrize("name", ["ci", "1", "null", "true", "1e5", "0x1f", "a.b@c-d_e", "12345678901234567890"])
def test_every_option_comes_to_a_field(name: str, tmp_path: Path, roundhouse: Roundhouse) -> None:
    options = (
        "--scope inference --scope admin --model gem* --model * --model org/chat:q4 --tool * --tool calculate "
        "--tenant 42 --weight 2.5 --rpm 60 "
        "--tpm 100000 --concurrency 4 --expires 2027-01-31T18:00:00+01:00 --tier priority --tier flex"
    )
    code, out, err = roundhouse("key", "new", name, *options.split())
    assert code == ExitCode.DONE
    assert "every request needs one" not in err, "this one does all"
    keys = declare(tmp_path, out)
    assert keys[name].tools == ["*", "calculate"]
    caller = KeyRing.of(build_keys(keys)).by_name[name]
    assert (caller.tenant, caller.weight, sorted(caller.scopes)) == ("42", 2.5, ["admin", "inference"])
    assert (caller.requests_per_minute, caller.tokens_per_minute, caller.concurrency) == (60, 100000, 4)
    assert (caller.expires_at, caller.tier_rank("priority"), caller.tier_rank("default")) == (1801414800.0, 0, 2)


def test_a_new_key_is_shown_as_json(roundhouse: Roundhouse) -> None:
    shown = roundhouse("key", "new", "ci", "--rpm", "5", "--json")
    assert (shown.code, shown.json["name"], shown.err) == (ExitCode.DONE, "ci", "")
    digest = sha256(shown.json["secret"].encode()).hexdigest()
    assert shown.json["key"] == {"sha256": digest, "requests_per_minute": 5}
    assert KeyDefinition.model_validate(shown.json["key"])


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
def test_what_no_key_can_be(arguments: list[str], error: str, roundhouse: Roundhouse) -> None:
    code, out, err = roundhouse("key", "new", *arguments)
    assert (code, out) == (ExitCode.USAGE, "")
    assert error in err
    assert SECRET.search(err) is None


async def test_keys_are_listed_with_their_place_and_revoked(api: FakeControlApi, cli: Cli) -> None:
    assert "no keys are declared" in (await cli("key", "ls")).out
    api.status = status(model("chat"), keys=["ci", "guest", "unread"], expired_keys=["old"])
    by_hand = RuntimeDeclaration(fields={"sha256": "0" * 64}, declared_at=0.0, actor="Ann")
    places = {"keys.ci": "keys.yaml:3", "keys.old": "keys.yaml:9", "models.chat": "models.yaml:2"}
    api.declarations = DeclarationsView(problems=[], keys={"guest": by_hand}, places=places)
    assert [line.split()[:4] for line in (await cli("key", "ls")).lines] == [
        ["KEY", "STATE", "LAST", "USE"],
        ["ci", "in", "force", "unknown"],
        ["guest", "in", "force", "unknown"],
        ["old", "expired", "unknown", "keys.yaml:9"],
        ["unread", "in", "force", "unknown"],
    ]
    assert (await cli("key", "ls", "--json")).json[0] == {"name": "ci", "state": "in force", "where": "keys.yaml:3"}
    now = time.time()
    used = {"ci": now - 60 * 3, "guest": now - 7300, "old": now - 86400 * 9}
    api.status = api.status.model_copy(update={"keys_used": used})
    listed = await cli("key", "ls")
    assert [line.split("  ")[0] for line in listed.lines[1:]] == ["ci", "guest", "old", "unread"]
    for name, words in {"ci": "3 min ago", "guest": "2 h ago", "old": "9 days ago", "unread": "never seen"}.items():
        assert re.search(rf"^{name} .* {words} ", listed.out, re.MULTILINE), listed.out
    as_json = (await cli("key", "ls", "--json")).json
    assert {row["name"]: row["last_used"] for row in as_json} == {**used, "unread": None}
    unread = await cli("key", "revoke", "unread")
    assert (unread.code, "in force, from files that cannot be read now" in unread.err) == (ExitCode.FAILED, True)
    in_files = await cli("key", "revoke", "ci")
    assert (in_files.code, "declared in keys.yaml:3" in in_files.err) == (ExitCode.FAILED, True)
    unknown = await cli("key", "revoke", "gest")
    assert (unknown.code, "did you mean `guest`?" in unknown.err) == (ExitCode.FAILED, True)
    assert await cli("key", "revoke", "guest") == (ExitCode.DONE, "key guest: revoked\n", "")
    api.declarations = DeclarationsView(problems=[], keys={"guest": by_hand})
    assert (await cli("key", "revoke", "guest", "--last")).code == ExitCode.DONE
    api.declarations = DeclarationsView(problems=[], keys={"guest": by_hand})
    assert (await cli("declarations", "rm", "guest", "--key", "--last")).code == ExitCode.DONE
    dropped = [each for each in api.requests if each[0].startswith("drop")]
    assert dropped == [("drop key", "guest"), ("drop last key", "guest"), ("drop last key", "guest")]


def test_fields_scopes_tiers_and_headers_are_in_the_docs() -> None:
    assert rows_of("keys.md", "Fields") == field_rows(KeyDefinition)
    text = (DOCS / "keys.md").read_text()
    limits = ("limit", "remaining", "reset")
    headers = [f"x-ratelimit-{limit}-{what}" for what in ("requests", "tokens") for limit in limits]
    for word in (*get_args(KeyScope), *get_args(ServiceTier), *headers, "X-RateLimit-Client"):
        assert f"`{word}`" in text
    assert "](keys.md" in (DOCS / "models.md").read_text()

"""Models and keys that are declared at run time: beside the files, after them, over restarts."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from contract.declarations import RuntimeDeclaration, RuntimeDeclarations
from contract.errors import RoundhouseError
from contract.keys import KeyDefinition
from controller.admin.service import DeclarationService
from controller.artifacts.model_roots import ModelRoots
from controller.config import validate
from controller.config.debounce import CONFIRM_S, DebouncedState
from controller.config.runtime_declarations import CombinedDeclarations, combine_declarations
from controller.desired.file_source import DesiredOptions
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredCallbacks, DesiredStateSource
from controller.routing_table import build_keys
from controller.state import DesiredState
from controller.state_dir import StateDir
from gateway.tenancy.api_keys import KeyRing

FILE = "models:\n  a:\n    backend: stub\n    aliases: [other]\n"
STUB = {"backend": "stub"}
HASH = "a" * 64


class Site:
    """A folder of files, a state folder, and what a controller makes of both."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "desired").mkdir()
        self.now = 1_000.0
        self.edits: list[tuple[str, list[str]]] = []
        self.superseded: list[tuple[str, str]] = []
        self.store = StateDir.open_folder(root / "state")
        self.start()

    def start(self, *trusted: str) -> None:
        """As a controller that starts does, with these trusted fields."""
        self.files = DesiredStateSource(
            DesiredOptions(self.root / "desired", ModelRoots((self.root,)), Defaults(), 10.0, frozenset(trusted)),
            self.store,
            lambda: self.now,
            DesiredCallbacks(
                on_edit=lambda _, after, _ends, actor: self.edits.append((actor, sorted(after.definitions))),
                on_superseded=lambda kind, name: self.superseded.append((kind, name)),
            ),
        )
        self.files.recover_last_good()
        self.service = DeclarationService(self.files, lambda: None, lambda: self.now)

    async def write(self, text: str) -> None:
        (self.root / "desired" / "models.yaml").write_text(text)
        await self.files.read_files()

    def put(self, name: str, kind: str = "models", **fields: object) -> None:
        """Declare a model, a stub unless `fields` say otherwise, or a key."""
        self.service.put_declaration(kind, name, fields or STUB, actor="me")  # type: ignore[arg-type] # the words of tests

    @property
    def desired(self) -> DesiredState:
        desired = self.files.desired_state()
        assert desired is not None
        return desired

    def wanted(self) -> dict[str, bool]:
        """By model whether it was declared at run time."""
        return {name: each.is_runtime_declared for name, each in self.desired.models.items()}

    async def restart(self, *trusted: str) -> None:
        """As a new controller does, which reads the files."""
        self.start(*trusted)
        await self.files.read_files()

    async def confirm(self) -> None:
        """Read the files once more when what is missing there counts as deleted."""
        self.now += CONFIRM_S
        await self.files.read_files()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    site = Site(tmp_path)
    await site.write(FILE)
    yield site
    site.store.close()


async def test_a_declared_model_is_wanted_beside_those_of_the_files_over_restarts(site: Site) -> None:
    site.put("b", backend="stub", replicas=2)
    assert site.wanted() == {"a": False, "b": True}
    assert site.edits[-1] == ("me", ["a", "b"])
    site.start()
    assert site.wanted() == {"a": False, "b": True}
    await site.files.read_files()
    assert site.wanted() == {"a": False, "b": True}
    assert site.service.get_declaration("models", "b").fields == {"backend": "stub", "replicas": 2}
    revision = site.files.revision
    site.put("b", backend="stub", replicas=2)
    assert site.files.revision == revision, "the same again changes nothing"
    assert [each.name for each in (site.root / "desired").iterdir()] == ["models.yaml"]
    assert (site.root / "desired" / "models.yaml").read_text() == FILE, "no file is written"
    assert '"b"' not in (site.root / "state" / "desired.json").read_text(), "the last good state is that of files"


async def test_what_is_taken_back_goes_at_once(site: Site) -> None:
    site.put("b")
    assert site.service.drop_declaration("models", "b", actor="me").fields == STUB
    assert site.wanted() == {"a": False}
    with pytest.raises(RoundhouseError) as refused:
        site.service.drop_declaration("models", "b", actor="me")
    assert refused.value.entry.code == "unknown_declaration"
    with pytest.raises(RoundhouseError, match="what files declare is not one"):
        site.service.drop_declaration("models", "a", actor="me")


async def test_files_that_declare_the_name_end_the_declaration_and_restart_nothing(site: Site) -> None:
    site.put("b", backend="stub", replicas=2)
    site.put("k", kind="keys", sha256=HASH)
    before = site.desired
    site.now += 60
    await site.write(FILE + f"  b: {{backend: stub, replicas: 2}}\nkeys: {{k: {{sha256: {HASH}}}}}\n")
    after = site.desired
    assert after.models["b"].spec_hash == before.models["b"].spec_hash
    assert site.wanted() == {"a": False, "b": False}
    assert sorted(site.superseded) == [("keys", "k"), ("models", "b")]
    assert site.service.list_declarations().models == {}
    assert list(after.keys) == ["k"]
    site.now += 60
    await site.write(FILE)
    await site.confirm()
    assert site.wanted() == {"a": False}, "it does not come back when the file forgets it"


async def test_broken_files_do_not_hinder_a_declaration(site: Site) -> None:
    await site.write("models: [")
    site.put("b")
    assert site.wanted() == {"a": False, "b": True}
    await site.restart()
    assert site.wanted() == {"a": False, "b": True}


async def test_what_the_files_declare_has_a_place(site: Site) -> None:
    (site.root / "desired" / "keys.yaml").write_text(f"keys:\n  ci:\n    sha256: {HASH}\n")
    await site.files.read_files()
    folder = site.root / "desired"
    assert site.service.list_declarations().places == {
        "keys.ci": f"{folder}/keys.yaml:2",
        "models.a": f"{folder}/models.yaml:2",
    }
    for kind, name, place in (("models", "a", "models.yaml:2"), ("keys", "ci", "keys.yaml:2")):
        with pytest.raises(RoundhouseError, match=re.escape(f"{name} is declared in {folder}/{place}: edit it there.")):
            site.put(name, kind, sha256=HASH)


@pytest.mark.parametrize(
    ("kind", "name", "fields", "code", "param"),
    [
        ("models", "a", STUB, "declared_in_files", "name"),
        ("models", "other", STUB, "invalid_declaration", "models.other"),
        ("models", "b", {"backend": "stub", "aliases": ["a"]}, "invalid_declaration", "models.b.aliases[0]"),
        ("models", "b", {"backend": "stub", "replicsa": 1}, "invalid_declaration", "models.b.replicsa"),
        ("models", "b", {"backend": "stub", "model_path": "../x"}, "invalid_declaration", "models.b.model_path"),
        ("models", "b", {}, "invalid_declaration", "models.b"),
        ("models", "b c", STUB, "invalid_declaration", "models.b c"),
        ("keys", "k", {}, "invalid_declaration", "keys.k.sha256"),
        ("keys", "k", {"sha256": "rh-" + "x" * 43}, "invalid_declaration", "keys.k.sha256"),
    ],
)
async def test_what_is_wrong_is_said_and_changes_nothing(
    site: Site, kind: str, name: str, fields: dict[str, object], code: str, param: str
) -> None:
    revision = site.files.revision
    with pytest.raises(RoundhouseError) as refused:
        site.service.put_declaration(kind, name, fields, actor="me")  # type: ignore[arg-type] # the words of tests
    assert (refused.value.entry.code, refused.value.param) == (code, param)
    assert "rh-xxx" not in str(refused.value)
    assert site.files.revision == revision
    assert site.service.list_declarations().models == {}


async def test_two_declarations_that_clash(site: Site) -> None:
    site.put("b", backend="stub", aliases=["x"])
    with pytest.raises(RoundhouseError, match="alias `x` is already an alias of model b"):
        site.put("c", backend="stub", aliases=["x"])
    site.put("k", kind="keys", sha256=HASH)
    with pytest.raises(RoundhouseError, match=r"is also that of `keys\.k`"):
        site.put("l", kind="keys", sha256=HASH)


async def test_an_edit_that_clashes_leaves_out_the_declaration_alone_and_says_so(site: Site) -> None:
    site.put("b", backend="stub", aliases=["x"])
    site.put("c")
    await site.write(FILE + "  d: {backend: stub, aliases: [x]}\n")
    assert site.wanted() == {"a": False, "c": True, "d": False}
    [problem] = site.service.list_declarations().problems
    assert (problem.field, problem.message) == ("models.b.aliases[0]", "alias `x` is already an alias of model d")
    await site.write(FILE)
    await site.confirm()
    assert site.wanted() == {"a": False, "b": True, "c": True}, "it comes back when the clash is gone"


async def test_secrets_are_masked(site: Site) -> None:
    site.start("env")
    site.put("b", backend="stub", env={"HF_TOKEN": "hunter2-hunter2"})
    assert "hunter2" not in site.service.list_declarations().model_dump_json()
    assert "hunter2" not in site.service.get_declaration("models", "b").model_dump_json()
    assert site.desired.models["b"].definition.env == {"HF_TOKEN": "hunter2-hunter2"}


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"backend": "stub", "env": {"PYTHONPATH": "/tmp/evil"}}, "env"),
        ({"backend": "stub", "env": {"LD_PRELOAD": "/tmp/evil.so"}}, "env"),
        ({"backend": "stub", "extra_args": ["--log-file", "/tmp/x"]}, "extra_args"),
        ({"backend": "stub", "image": "registry.example/evil"}, "image"),
        ({"model_path": "m.gguf", "llama_server_binary": "/tmp/evil"}, "llama_server_binary"),
        ({"model_path": "m.gguf", "source": "file:/etc/passwd"}, "source"),
        ({"backend": "openai_remote", "base_url": "http://h/v1"}, "base_url"),
        ({"backend": "openai_remote", "base_url": "http://h/v1", "api_key_file": "/etc/passwd"}, "api_key_file"),
        ({"backend": "vllm", "model_path": "m", "vllm_trust_remote_code": True}, "vllm_trust_remote_code"),
    ],
)
async def test_what_runs_code_or_reads_files_is_refused_and_names_the_way(
    site: Site, fields: dict[str, Any], field: str
) -> None:
    with pytest.raises(RoundhouseError) as refused:
        site.put("evil", **fields)
    assert refused.value.entry.code == "invalid_declaration"
    assert str(refused.value.param).startswith("models.evil.")
    assert f"models.evil.{field}: " in str(refused.value)
    assert "declare it in the desired-state files" in str(refused.value)
    assert f"or list `{field}` in ROUNDHOUSE_TRUSTED_DECLARATIONS" in str(refused.value)
    assert site.wanted() == {"a": False}
    assert site.service.list_declarations().models == {}


async def test_a_link_that_leads_out_of_the_models_folder_is_no_way_out(site: Site, tmp_path: Path) -> None:
    outside = tmp_path.parent / f"{tmp_path.name}-outside"
    (outside / "hf").mkdir(parents=True)
    (outside / "m.gguf").write_bytes(b"GGUF")
    (site.root / "link").symlink_to(outside)
    (site.root / "there.gguf").symlink_to(outside / "m.gguf")
    (site.root / "loop").symlink_to("loop")
    (site.root / "folder").mkdir()
    (site.root / "folder" / "weights").symlink_to(outside / "hf")
    (site.root / "inside.gguf").write_bytes(b"GGUF")
    (site.root / "near.gguf").symlink_to("inside.gguf")
    leading_out: list[dict[str, Any]] = [
        {"model_path": "link/m.gguf"},
        {"model_path": "there.gguf"},
        {"model_path": str(site.root / "link" / "not-yet.gguf")},
        {"model_path": "inside.gguf", "llama_server_lora": ["inside.gguf", "there.gguf"]},
        {"backend": "vllm", "model_path": "folder"},
        {"backend": "vllm", "model_path": "hf", "vllm_speculative_model": str(site.root / "link" / "hf")},
    ]
    for number, fields in enumerate(leading_out):
        with pytest.raises(RoundhouseError, match=r"leads out of the models folder .* by the symbolic link") as refused:
            site.put(f"m{number}", **fields)
        assert refused.value.entry.code == "invalid_declaration"
    for number, path in enumerate(("near.gguf", "missing.gguf", "loop/m.gguf")):
        site.put(f"good{number}", model_path=path)
    await site.write("models: {b: {model_path: there.gguf, enabled: false}}")
    assert "b" in site.wanted(), "a file may: the preflight says what is wrong"


async def test_what_an_earlier_version_kept_is_left_out_with_a_reason_and_stays(site: Site) -> None:
    site.start("env", "source")
    site.put("old", backend="stub", env={"A": "b"})
    site.put("fine")
    site.put("far", source="oci:registry.example/m")
    await site.restart()
    assert site.wanted() == {"a": False, "fine": True}
    problems = {each.field: each.message for each in site.service.list_declarations().problems}
    assert problems.keys() == {"models.old.env", "models.far.source"}
    assert problems["models.old.env"] == (
        "a request may not set it: declare it in the desired-state files, or list `env` in "
        "ROUNDHOUSE_TRUSTED_DECLARATIONS"
    )
    assert site.files.declarations.models["old"].fields == {"backend": "stub", "env": {"A": "b"}}
    await site.restart("env")
    assert site.wanted() == {"a": False, "fine": True, "old": True}, "it comes back when the operator trusts the field"


async def test_an_assistant_is_declared_by_source_whatever_was_declared_first(site: Site) -> None:
    naming = {"backend": "vllm", "model_path": "m", "vllm_speculative_model": "user/assistant"}
    with pytest.raises(RoundhouseError, match="`USER/REPO` of a declared model's `source`"):
        site.put("b", **naming)
    site.put("c", backend="vllm", source="hf:user/assistant")
    site.put("b", **naming)
    site.service.drop_declaration("models", "c", actor="me")
    assert site.wanted() == {"a": False}
    site.put("c", backend="vllm", source="hf:user/assistant")
    assert site.wanted() == {"a": False, "b": True, "c": True}


async def test_a_change_that_clashes_is_refused_and_takes_no_other_declaration_out_of_force(site: Site) -> None:
    for name, digest in (("a", "a"), ("b", "b")):
        site.put(name, "keys", sha256=digest * 64, tenant="team", weight=1)
    site.put("x")
    site.put("y")
    with pytest.raises(RoundhouseError) as refused:
        site.put("a", "keys", sha256=HASH, tenant="team", weight=2)
    assert (refused.value.entry.code, refused.value.param) == ("invalid_declaration", "keys.a.weight")
    with pytest.raises(RoundhouseError) as refused:
        site.put("x", backend="stub", aliases=["y"])
    assert refused.value.entry.code == "invalid_declaration"
    state = site.files.desired_state()
    assert state is not None
    assert (sorted(state.keys), sorted(state.models)) == (["a", "b"], ["a", "x", "y"])


def _combine(keys: dict[str, dict[str, Any]], files: DebouncedState | None = None) -> CombinedDeclarations:
    declared = {name: RuntimeDeclaration(fields=fields, declared_at=1.0, actor="me") for name, fields in keys.items()}
    files = files or DebouncedState({}, {})
    return combine_declarations(files, RuntimeDeclarations(keys=declared), ModelRoots((Path("/models"),)))


def test_where_every_declared_key_is_left_out_nobody_is_let_in() -> None:
    combined = _combine({"k": {"sha256": HASH, "of_a_newer_version": 1}})
    assert [each.field for each in combined.problems] == ["keys.k.of_a_newer_version"]
    ring = KeyRing.of(build_keys(combined.state.keys))
    with pytest.raises(RoundhouseError):
        ring.authenticate_key([], 0.0)
    assert list(_combine({"k": {"sha256": HASH}, "l": {}}).state.keys) == ["k"]
    assert _combine({}).state.keys == {}


def test_keys_are_validated_once_each_and_a_left_out_one_takes_no_other_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs: list[str] = []
    run = validate._KeyValidator.run

    def note_run(check: validate._KeyValidator) -> KeyDefinition | None:
        runs.append(check.name)
        return run(check)

    monkeypatch.setattr(validate._KeyValidator, "run", note_run)
    first = {"sha256": "0" * 64, "tenant": "t", "weight": 1.0}
    files = DebouncedState({}, {}, keys={"k0": KeyDefinition.model_validate(first)}, declared_keys={"k0": first})
    keys: dict[str, dict[str, Any]] = {f"k{number}": {"sha256": f"{number:064x}"} for number in range(1, 30)}
    keys["k5"] |= {"sha256": "0" * 64, "tenant": "u", "weight": 2.0}  # of u, a weight that does not count
    keys["k6"] |= {"tenant": "u", "weight": 3.0}
    keys["k7"] |= {"tenant": "t", "weight": 4.0}
    combined = _combine(keys, files)
    assert {owner: [each.field for each in found] for owner, found in combined.problems_of.items()} == {
        ("keys", "k5"): ["keys.k5.sha256"],
        ("keys", "k7"): ["keys.k7.weight"],
    }
    assert combined.state.keys.keys() == {"k0", *keys} - {"k5", "k7"}
    assert sorted(runs) == sorted(keys)


async def test_a_model_has_no_problems_of_one_whose_name_begins_with_its_own(site: Site) -> None:
    site.start("env")
    site.put("b.c", backend="stub", env={"A": "b"})
    await site.restart()  # `env` is not trusted any more
    site.put("b")
    assert site.wanted() == {"a": False, "b": True}


async def test_the_last_key_is_revoked_only_by_a_request_that_says_so(site: Site) -> None:
    site.put("one", "keys", sha256=HASH)
    site.put("two", "keys", sha256="b" * 64)
    site.service.drop_declaration("keys", "two", actor="me")
    with pytest.raises(RoundhouseError, match="one is the last key") as refused:
        site.service.drop_declaration("keys", "one", actor="me")
    assert (refused.value.entry.code, list(site.desired.keys)) == ("last_key", ["one"])
    await site.write(FILE + f"keys: {{ci: {{sha256: {'c' * 64}}}}}\n")
    site.service.drop_declaration("keys", "one", actor="me")
    assert list(site.desired.keys) == ["ci"]


async def test_the_last_key_can_be_revoked(site: Site) -> None:
    site.put("one", "keys", sha256=HASH)
    site.service.drop_declaration("keys", "one", actor="me", even_last=True)
    assert not site.desired.keys

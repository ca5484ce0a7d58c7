"""Models and keys that are declared at run time: beside the files, after them, over restarts."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from controller.admin.declaration_service import DeclarationService
from controller.artifacts.model_roots import ModelRoots
from controller.config.debounce import CONFIRM_S
from controller.desired.resolve import Defaults
from controller.desired.source import DesiredStateSource
from controller.schema.errors import RoundhouseError
from controller.storage.state_dir import StateDir

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

    def start(self) -> None:
        """As a controller that starts does."""
        self.files = DesiredStateSource(
            self.root / "desired",
            ModelRoots((self.root,)),
            self.store,
            Defaults(),
            resync_s=10.0,
            clock=lambda: self.now,
            on_edit=lambda _, after, _ends, actor: self.edits.append((actor, sorted(after.definitions))),
            on_superseded=lambda kind, name: self.superseded.append((kind, name)),
        )
        self.files.recover_last_good()
        self.service = DeclarationService(self.files, lambda: None, lambda: self.now)

    async def write(self, text: str) -> None:
        """Write the one file, and read it."""
        (self.root / "desired" / "models.yaml").write_text(text)
        await self.files.read_files()

    def put(self, name: str, kind: str = "models", **fields: object) -> None:
        """Declare a model, a stub unless `fields` say otherwise, or a key."""
        self.service.put_declaration(kind, name, fields or STUB, actor="me")  # type: ignore[arg-type] # the words of tests

    def wanted(self) -> dict[str, bool]:
        """By model whether it was declared at run time."""
        desired = self.files.desired_state()
        assert desired is not None
        return {name: each.is_runtime_declared for name, each in desired.models.items()}


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    made = Site(tmp_path)
    await made.write(FILE)
    yield made
    made.store.close()


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


async def test_no_file_is_written(site: Site) -> None:
    site.put("b")
    assert [each.name for each in (site.root / "desired").iterdir()] == ["models.yaml"]
    assert (site.root / "desired" / "models.yaml").read_text() == FILE
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
    before = site.files.desired_state()
    site.now += 60
    await site.write(FILE + f"  b: {{backend: stub, replicas: 2}}\nkeys: {{k: {{sha256: {HASH}}}}}\n")
    after = site.files.desired_state()
    assert before is not None
    assert after is not None
    assert after.models["b"].spec_hash == before.models["b"].spec_hash
    assert site.wanted() == {"a": False, "b": False}
    assert sorted(site.superseded) == [("keys", "k"), ("models", "b")]
    assert site.service.list_declarations().models == {}
    assert list(after.keys) == ["k"]
    site.now += 60
    await site.write(FILE)
    site.now += CONFIRM_S
    await site.files.read_files()
    assert site.wanted() == {"a": False}, "it does not come back when the file forgets it"


async def test_broken_files_do_not_hinder_a_declaration(site: Site) -> None:
    await site.write("models: [")
    site.put("b")
    assert site.wanted() == {"a": False, "b": True}
    site.start()
    await site.files.read_files()
    assert site.wanted() == {"a": False, "b": True}


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
    site.now += CONFIRM_S
    await site.files.read_files()
    assert site.wanted() == {"a": False, "b": True, "c": True}, "it comes back when the clash is gone"


async def test_secrets_are_masked(site: Site) -> None:
    site.put("b", backend="stub", env={"HF_TOKEN": "hunter2-hunter2"})
    assert "hunter2" not in site.service.list_declarations().model_dump_json()
    assert "hunter2" not in site.service.get_declaration("models", "b").model_dump_json()
    desired = site.files.desired_state()
    assert desired is not None
    assert desired.models["b"].definition.env == {"HF_TOKEN": "hunter2-hunter2"}

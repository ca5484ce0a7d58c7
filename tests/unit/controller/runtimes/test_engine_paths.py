"""By which path an engine reaches a model's files: as a process as the controller does, in a container by mounts."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from controller.artifacts.model_roots import ModelRoots
from controller.desired.file_source import find_outside_paths
from controller.engines import ENGINES
from controller.engines.base import FileCheck, RenderContext
from controller.runtimes.docker.container_spec import models_targets
from controller.runtimes.model_files import Mounts, check_model, find_broken_link, find_engine_paths, mount_roots
from tests.support.definitions import define


class Folders:
    """Two models folders, the second laid out as the Hugging Face cache, and something outside of both."""

    def __init__(self, root: Path) -> None:
        self.first, self.hub, self.outside = (root / name for name in ("models", "hub", "outside"))
        self.snapshot = self.hub / "models--a--b" / "snapshots" / "1"
        self.blobs = self.hub / "models--a--b" / "blobs"
        for folder in (self.first, self.snapshot, self.blobs, self.outside):
            folder.mkdir(parents=True)
        for file in (self.first / "m.gguf", self.blobs / "0123", self.outside / "o.gguf"):
            file.write_bytes(b"GGUF")
        (self.snapshot / "m.gguf").symlink_to("../../blobs/0123")
        self.roots = ModelRoots((self.first, self.hub))
        self.mounts = mount_roots(self.roots, models_targets(2))

    def link(self, path: Path, target: Path | str) -> str:
        """A new link, as an absolute path."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)
        return str(path)

    def container_path(self, path: str, mounts: Mounts | None = None) -> str:
        """What an engine in a container is given."""
        return find_engine_paths(self.roots, [path], mounts or self.mounts)[path]


@pytest.fixture
def folders(tmp_path: Path) -> Folders:
    return Folders(tmp_path)


def test_a_process_goes_by_the_path_itself(folders: Folders) -> None:
    link = folders.link(folders.first / "link.gguf", folders.blobs / "0123")
    paths = ["m.gguf", "none.gguf", link, str(folders.snapshot / "m.gguf")]
    assert find_engine_paths(folders.roots, paths) == {
        "m.gguf": str(folders.first / "m.gguf"),
        "none.gguf": str(folders.first / "none.gguf"),
        link: link,
        str(folders.snapshot / "m.gguf"): str(folders.snapshot / "m.gguf"),
    }


def test_links_that_stay_in_their_folder_keep_their_names(folders: Folders) -> None:
    snapshot = "models--a--b/snapshots/1"
    assert [str(each) for each in models_targets(3)] == ["/models", "/models-2", "/models-3"]
    assert folders.container_path("m.gguf") == "/models/m.gguf"
    assert folders.container_path(f"{snapshot}/m.gguf") == f"/models-2/{snapshot}/m.gguf"
    assert folders.container_path(str(folders.snapshot)) == f"/models-2/{snapshot}"
    folders.link(folders.first / "sub" / "up.gguf", "../m.gguf")
    assert folders.container_path("sub/up.gguf") == "/models/sub/up.gguf"
    assert folders.container_path("none.gguf") == "/models/none.gguf"


@pytest.mark.parametrize("relative", [True, False])
def test_a_link_that_a_container_cannot_follow_is_given_as_what_it_names(folders: Folders, relative: bool) -> None:
    target = "../hub/models--a--b/blobs/0123" if relative else folders.blobs / "0123"
    folders.link(folders.first / "link.gguf", target)
    assert folders.container_path("link.gguf") == "/models-2/models--a--b/blobs/0123"
    folders.link(folders.first / "folder", "../hub" if relative else folders.hub)
    path = "folder/models--a--b/snapshots/1/m.gguf"
    assert folders.container_path(path) == "/models-2/models--a--b/blobs/0123"
    folders.link(folders.first / "inside.gguf", folders.first / "m.gguf")
    assert folders.container_path("inside.gguf") == "/models/m.gguf", "absolute, although it stays inside"


def test_a_folder_that_controller_and_engines_see_at_one_place_is_reached_by_any_link(folders: Folders) -> None:
    mounts = mount_roots(folders.roots, [PurePosixPath(each) for each in folders.roots.folders])
    links = [
        folders.link(folders.first / "absolute.gguf", folders.blobs / "0123"),
        folders.link(folders.first / "relative.gguf", "../hub/models--a--b/blobs/0123"),
    ]
    assert [folders.container_path(link, mounts) for link in links] == links


def test_what_leads_nowhere_or_outside_is_no_reason_to_fail(folders: Folders) -> None:
    circle = folders.link(folders.first / "circle.gguf", "circle.gguf")
    outside = folders.link(folders.first / "outside.gguf", folders.outside / "o.gguf")
    up = folders.link(folders.first / "up.gguf", "../outside/o.gguf")
    found = find_engine_paths(folders.roots, [circle, outside, up, "../x", "/etc/passwd"], folders.mounts)
    assert found == {path: f"/models/{Path(path).name}" for path in (circle, outside, up)}


def broken_link(folders: Folders, path: str, *beside: str) -> str | None:
    return find_broken_link(folders.roots, [FileCheck("model_path", path, beside=beside)], folders.mounts)


def test_links_within_a_folder_that_containers_cannot_follow_are_told(folders: Folders) -> None:
    for name in ("config.json", "README.md"):
        folders.link(folders.first / "old" / name, folders.blobs / "0123")
    assert broken_link(folders, "old") == (
        f"model_path: old needs config.json, which is reached by a symbolic link ({folders.blobs / '0123'}) that "
        "engines in containers cannot follow: there only relative links within one models folder lead to the same "
        "file. Make it relative (`ln -srf`), or put the file itself there"
    )
    (folders.first / "old" / "config.json").unlink()
    assert broken_link(folders, "old") is None, "nobody opens the rest"
    assert broken_link(folders, str(folders.snapshot)) is None
    folders.link(folders.first / "linked", folders.snapshot)
    assert broken_link(folders, "linked") is None, "the folder is given as what the link names"


def test_what_is_told_of_names_that_are_not_utf8_can_be_written_as_json(folders: Folders) -> None:
    named = os.fsdecode(b"mod\xe8le.gguf")
    (folders.first / named).touch()
    definition = define("llama_server", model_path="modèle.gguf")
    missing = check_model(ModelRoots((folders.first,)), ENGINES["llama_server"], definition)
    assert missing == f"model_path: modèle.gguf is missing from {folders.first}; did you mean `mod?le.gguf`?"
    folders.link(folders.first / "old" / "config.json", folders.blobs / named)
    (folders.blobs / named).touch()
    assert f"({folders.blobs / 'mod?le.gguf'})" in str(broken_link(folders, "old"))
    folders.link(folders.first / "old" / named, folders.outside)
    [(_, problem)] = find_outside_paths(folders.roots, [("model_path", "old")])
    assert problem.endswith("by the symbolic link {}".format(folders.first / "old" / "mod?le.gguf"))


def test_files_that_belong_together_must_be_found_beside_each_other(folders: Folders) -> None:
    for number in (1, 2):
        folders.link(folders.first / f"a-0000{number}-of-00002.gguf", folders.blobs / "0123")
    assert "a-00001-of-00002.gguf, which is reached" in str(broken_link(folders, "a-00001-of-00002.gguf"))
    folders.link(folders.first / "m.onnx", folders.blobs / "0123")
    assert broken_link(folders, "m.onnx") is None
    assert "m.onnx, which is reached" in str(broken_link(folders, "m.onnx", "tokenizer.json"))
    assert broken_link(folders, "none.gguf") is None


def test_every_path_of_a_definition_is_taken_from_what_was_found() -> None:
    fields = {
        "llama_server": ("llama_server_mmproj", "llama_server_draft_model_path", "llama_server_chat_template_file"),
        "llama_cpp": (),
        "vllm": ("vllm_chat_template_file",),
        "vllm_serve": ("vllm_chat_template_file",),
        "exllamav3": (),
        "ct2": ("ct2_tokenizer",),
        "litert_lm": (),
        "onnx": ("onnx_tokenizer",),
    }
    assert {*fields, "openai_remote", "stub"} == {*ENGINES}
    for backend, names in fields.items():
        engine = ENGINES[backend]
        content = {"backend": backend, "model_path": "/there/model.gguf"} | {name: f"/there/{name}" for name in names}
        definition = engine.definition.model_validate(content)
        paths = {path: f"/engine{path}" for path in engine.list_paths(definition)}
        context = RenderContext("docker", "m", PurePosixPath("/models"), "h", 1, PurePosixPath("/c"), model_paths=paths)
        argv = engine.render_command(definition, context).argv
        if backend.startswith("vllm"):
            assistant = {"vllm_speculative_method": "mtp", "vllm_speculative_model": "/there/assistant"}
            speculating = definition.model_copy(update=assistant)
            found = replace(context, model_paths={path: f"/engine{path}" for path in engine.list_paths(speculating)})
            assert '"/engine/there/assistant"' in " ".join(engine.render_command(speculating, found).argv)
            assert engine.list_paths(definition.model_copy(update={**assistant, "vllm_speculative_model": "o/a"})) == (
                engine.list_paths(definition)
            )
        assert {word for word in argv if "/there/" in word} == {
            "/engine/there/model.gguf", *(f"/engine/there/{name}" for name in names)
        }  # fmt: skip

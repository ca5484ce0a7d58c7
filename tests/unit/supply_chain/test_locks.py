"""Everything that is installed is locked by version and by hash: the locks themselves, and who reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import pytest

from controller.settings import ControllerSettings
from tests.supply_chain.locks import IMAGE_LOCKS, REPOSITORY, Pin, list_locks, merge_pins, read_image_locks, read_lock

HASH = "a" * 64
ENVIRONMENT = {"python_version": "3.12", "python_full_version": "3.12.1", "sys_platform": "linux", "os_name": "posix"}
MARKERS = {
    "platform_machine": "x86_64",
    "platform_system": "Linux",
    "implementation_name": "cpython",
    "platform_python_implementation": "CPython",
}
DOCKERFILES = sorted((REPOSITORY / "images").glob("*/Dockerfile"))
OF_OUR_OWN = (
    "--no-deps dist/*.whl",
    "--no-deps --no-build-isolation -w dist .",
    "--no-deps --no-index --find-links /wheels llama-cpp-python",
)
"""What a build installs or makes that comes from no index: our own wheel, and one that its base brings."""


def test_a_lock_pins_versions_with_hashes_for_an_environment() -> None:
    text = (
        f"# a comment\nA_b==1.0 \\\n    --hash=sha256:{HASH} \\\n    --hash=sha256:{'b' * 64}\n"
        f"old==1 ; python_version < '3.12' --hash=sha256:{HASH}\nextra[one]==2+cpu --hash=sha256:{HASH}\n"
    )
    first, second = Pin("a-b", "1.0", frozenset({HASH, "b" * 64})), Pin("extra", "2+cpu", frozenset({HASH}))
    assert read_lock(text, ENVIRONMENT) == [first, second]
    assert [pin.name for pin in read_lock(text)] == ["a-b", "old", "extra"]


@pytest.mark.parametrize(
    "line",
    [
        "a==1.0",
        "a==1.0 --hash=md5:1",
        f"a>=1.0 --hash=sha256:{HASH}",
        f"a --hash=sha256:{HASH}",
        f"a>1,<2 --hash=sha256:{HASH}",
        f"a @ https://example.org/a.whl --hash=sha256:{HASH}",
    ],
)
def test_what_is_not_pinned_and_hashed_is_no_lock(line: str) -> None:
    with pytest.raises(ValueError, match="not locked by version and hash: a"):
        read_lock(line)


def test_two_versions_of_one_package_are_no_lock_of_an_image() -> None:
    with pytest.raises(ValueError, match="a is locked as 1 and as 2"):
        merge_pins([Pin("a", "1", frozenset({HASH})), Pin("a", "2", frozenset({HASH}))])


@pytest.mark.parametrize("lock", list_locks(), ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_lock_pins_all_by_version_and_hash(lock: Path) -> None:
    assert len(read_lock(lock.read_text())) > 0


@pytest.mark.parametrize("image", IMAGE_LOCKS)
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_the_locks_of_an_image_agree(image: str, version: str) -> None:
    environment: Mapping[str, str] = ENVIRONMENT | MARKERS | {"python_version": version}
    pins = read_image_locks(image, {**environment, "python_full_version": f"{version}.1"})
    assert {"pydantic", "uvicorn"} <= pins.keys()


@pytest.mark.parametrize("dockerfile", DOCKERFILES, ids=lambda path: path.parent.name)
def test_a_dockerfile_installs_with_hashes_only(dockerfile: Path) -> None:
    text = re.sub(r"^\s*#.*\n", "", dockerfile.read_text(), flags=re.MULTILINE).replace("\\\n", " ")
    text = text.replace('pip="/opt/build/bin/pip --python /opt/roundhouse/bin/python install"', "")
    commands = [" ".join(command.split()) for line in text.splitlines() for command in re.split(r"&&|\|\||;", line)]
    for command in commands:
        if re.search(r"bin/pip |\$pip |-m pip", command):
            is_hashed = "--require-hashes" in command and " wheel " not in command
            assert is_hashed or command.endswith(OF_OUR_OWN), command
        assert not re.search(r"\b(curl|wget|uv|npm|easy_install|git)\b|^ADD ", command), "nothing else brings code"


@pytest.mark.parametrize("image", IMAGE_LOCKS)
def test_a_dockerfile_installs_the_locks_that_its_sbom_is_compared_with(image: str) -> None:
    text = (REPOSITORY / "images" / image / "Dockerfile").read_text()
    named = {name for name in re.findall(r"-r (\S+\.txt)", text) if name != "build-requirements.txt"}
    engines = re.search(r'ARG ENGINES="([^"]*)"', text)
    if engines is not None:
        named = named - {"$engine.txt"} | {f"{engine}.txt" for engine in engines[1].split()}
    assert named == {Path(lock).name for lock in IMAGE_LOCKS[image]}


@pytest.mark.parametrize("lock", ["images/worker/vllm.txt", ".ci/vllm.txt"])
def test_vllm_s_image_is_of_the_version_that_is_locked_and_tested(lock: str) -> None:
    [version] = re.findall(r"^vllm(?:-cpu)?==([\d.]+) ", (REPOSITORY / lock).read_text(), re.MULTILINE)
    settings = ControllerSettings.model_fields["image_vllm"]
    assert settings.default == f"vllm/vllm-openai:v{version}"
    assert f"`vllm/vllm-openai:v{version}-cu129`" in (settings.description or "")
    assert f"`vllm/vllm-openai:v{version}-cu129`" in (REPOSITORY / "docs/images.md").read_text()

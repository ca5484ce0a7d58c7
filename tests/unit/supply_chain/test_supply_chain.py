"""Locks, what images hold of them, known vulnerabilities in it, and what the worker's image installs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from controller.settings import ControllerSettings
from tests.supply_chain.audit import Audit, judge_audits, list_requirements, read_report
from tests.supply_chain.locks import IMAGE_LOCKS, REPOSITORY, Pin, list_locks, merge_pins, read_image_locks, read_lock
from tests.supply_chain.page_lock import PagePackage, read_page_lock
from tests.supply_chain.sbom import ImageContents, build_sbom
from tests.support.vllm_flags import LOCKED, read_version

CONTENTS = ImageContents(
    "sha256:12",
    datetime(2026, 11, 22, tzinfo=UTC),
    {"a-b": "1.0", "changed": "3", "roundhouse": "0.1.0"},
    {"python_version": "3.12"},
    (("libc6", "2.36-9+deb12u13", "amd64"),),
    (PagePackage("@scope/part", "2.0.0", "a" * 128), PagePackage("react", "19.0.0", "b" * 128)),
)
PINS = {
    "a-b": Pin("a-b", "1.0", frozenset({"e" * 64, "d" * 64})),
    "changed": Pin("changed", "2", frozenset({"f" * 64})),
}


def test_an_sbom_lists_what_is_installed_with_the_hashes_of_what_is_locked() -> None:
    made = json.loads(build_sbom("gateway", "roundhouse/gateway:latest", CONTENTS, PINS))
    assert (made["bomFormat"], made["specVersion"]) == ("CycloneDX", "1.6")
    assert made["metadata"]["component"]["name"] == "roundhouse/gateway"
    assert made["metadata"]["component"]["version"] == "sha256:12"
    components = {each["purl"]: each for each in made["components"]}
    assert components.keys() == {
        "pkg:npm/%40scope/part@2.0.0",
        "pkg:npm/react@19.0.0",
        "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64",
        "pkg:pypi/a-b@1.0",
        "pkg:pypi/changed@3",
        "pkg:pypi/roundhouse@0.1.0",
    }
    [reference] = components["pkg:pypi/a-b@1.0"]["externalReferences"]
    assert reference["url"] == "https://pypi.org/simple/a-b/"
    assert reference["hashes"] == [{"alg": "SHA-256", "content": "d" * 64}, {"alg": "SHA-256", "content": "e" * 64}]
    [reference] = components["pkg:npm/%40scope/part@2.0.0"]["externalReferences"]
    assert reference["hashes"] == [{"alg": "SHA-512", "content": "a" * 128}]
    assert "externalReferences" not in components["pkg:pypi/changed@3"], "another version has other hashes"


def test_the_same_contents_give_the_same_text() -> None:
    assert build_sbom("gateway", "i", CONTENTS, PINS) == build_sbom("gateway", "i", CONTENTS, PINS)


def test_what_only_builds_the_page_is_no_part_of_it() -> None:
    packages = {
        "": {
            "dependencies": {"react": "19.0.0", "@scope/a": "1.0.0", "vite": "8.0.0"},
            "devDependencies": {"vitest": "4.0.0"},
        },
        "node_modules/react": {"version": "19.0.0", "integrity": "sha512-AAE="},
        "node_modules/@scope/a": {
            "version": "1.0.0",
            "integrity": "sha512-AAY=",
            "dependencies": {"b": "2.0.0"},
            "optionalDependencies": {"canvas": "1.0.0"},
            "peerDependencies": {"react": ">=18", "sass": "*"},
            "peerDependenciesMeta": {"sass": {"optional": True}},
        },
        "node_modules/@scope/a/node_modules/b": {
            "version": "2.0.0",
            "integrity": "sha512-AAI=",
            "dependencies": {"c": "1.0.0", "@scope/a": "1.0.0"},
        },
        "node_modules/b": {"version": "3.0.0", "integrity": "sha512-AAU="},
        "node_modules/c": {"version": "1.0.0", "integrity": "sha512-AAc="},
        "node_modules/vite": {"version": "8.0.0", "integrity": "sha512-AAM=", "dependencies": {"b": "3.0.0"}},
        "node_modules/vitest": {"version": "4.0.0", "integrity": "sha512-AAg=", "dev": True},
        "node_modules/canvas": {"version": "1.0.0", "integrity": "sha512-AAQ=", "optional": True},
        "node_modules/sass": {"version": "1.0.0", "integrity": "sha512-AAk="},
    }
    assert read_page_lock(json.dumps({"packages": packages})) == (
        PagePackage("@scope/a", "1.0.0", "0006"),
        PagePackage("b", "2.0.0", "0002"),
        PagePackage("c", "1.0.0", "0007"),
        PagePackage("react", "19.0.0", "0001"),
    )


SKIPPED = {"name": "b", "skip_reason": "Dependency not found on PyPI and could not be audited: b (1)"}
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
HIT = {
    "name": "c",
    "version": "2.0",
    "vulns": [
        {"id": "PYSEC-2", "fix_versions": [], "aliases": [], "description": "worse"},
        {
            "id": "PYSEC-1",
            "fix_versions": ["2.1", "3.0"],
            "aliases": ["CVE-2026-1"],
            "description": "bad\n\nvery " * 90,
        },
    ],
}


def report(*packages: dict[str, Any]) -> Audit:
    return read_report(json.dumps({"dependencies": packages, "fixes": []}))


@pytest.mark.parametrize("text", ["", "Traceback (most recent call last):", "[]", '{"fixes": []}'])
def test_what_is_no_report_is_no_answer(text: str) -> None:
    assert not read_report(text).is_answer


def test_every_version_of_every_package_is_asked_for_once() -> None:
    pins = [Pin(name, version, frozenset()) for name, version in (("b", "2"), ("a", "1"), ("b", "1+cpu"), ("b", "2"))]
    assert list_requirements(pins) == [["a==1", "b==1"], ["b==2"]]
    assert list_requirements([]) == []


def test_nobody_asked_is_neither_good_nor_bad() -> None:
    status, [line] = judge_audits([("pypi", report(SKIPPED, SKIPPED)), ("osv", read_report(""))])
    assert status == 3
    assert line == "audit: no source of advisories could be reached (pypi and osv): nothing is known, good or bad"


def test_an_audit_that_finds_nothing_passes() -> None:
    assert judge_audits([("pypi", report(CLEAN))]) == (0, ["audit: 0 known vulnerabilities in 1 packages, by pypi"])


def test_what_is_found_is_told_with_its_remedy() -> None:
    status, lines = judge_audits([("pypi", read_report("")), ("osv", report(CLEAN, SKIPPED, HIT))])
    assert status == 1
    assert lines[0].startswith("c 2.0: PYSEC-1, CVE-2026-1 (fixed in 2.1, 3.0): bad very bad very ")
    assert len(lines[0]) < 220
    assert lines[1:] == [
        "c 2.0: PYSEC-2 (fixed in no version): worse",
        "audit: osv does not know 1 packages: b",
        "audit: 2 known vulnerabilities in 2 packages, by osv",
    ]


DOCKERFILE = Path(__file__).resolve().parents[3] / "images" / "worker" / "Dockerfile"
INSTALL = "apt-get install -y --no-install-recommends "


def _install_command() -> str:
    """The RUN of the last stage that installs packages."""
    last_stage = re.split(r"^FROM .*$", DOCKERFILE.read_text(), flags=re.MULTILINE)[-1]
    commands = re.findall(r"^RUN ((?:.*\\\n)*.*)$", last_stage, re.MULTILINE)
    [command] = [str(each) for each in commands if "apt-get" in each]
    return command


def _installed(tmp_path: Path, engines: str, libraries: tuple[str, ...]) -> list[str]:
    """The packages that are installed for these engines on a base that has these libraries."""
    stubs, log = tmp_path / "stubs", tmp_path / "log"
    stubs.mkdir()
    for name in ("apt-get", "rm"):
        (stubs / name).write_text(f'#!/bin/sh\necho {name} "$@" >>"{log}"\n')
    listing = "".join(f"echo '\\t{name} (libc6,x86-64) => /usr/lib/{name}'\n" for name in libraries)
    (stubs / "ldconfig").write_text(f"#!/bin/sh\n{listing}")
    for each in stubs.iterdir():
        each.chmod(0o755)
    # Nothing else is found: whatever a later version of the command does, it does nothing to this host.
    (stubs / "grep").symlink_to(shutil.which("grep") or "/bin/grep")
    environment = {"PATH": str(stubs), "ENGINES": engines}
    subprocess.run(["/bin/sh", "-c", _install_command()], env=environment, check=True, cwd=tmp_path)
    lines = log.read_text().splitlines() if log.exists() else []
    if not lines:
        return []
    update, install, clean = lines
    assert (update, clean.split("/lists/")[0]) == ("apt-get update", "rm -rf /var/lib/apt")
    assert install.startswith(INSTALL)
    return install.removeprefix(INSTALL).split()


@pytest.mark.parametrize(
    ("engines", "libraries", "packages"),
    [
        ("llama-cpp ct2 onnx litert-lm", (), ["libgomp1", "libvulkan1", "libxext6"]),
        ("litert-lm", ("libgomp.so.1", "libXext.so.6"), ["libvulkan1"]),
        ("llama-cpp", (), ["libgomp1"]),
        ("vllm", ("libgomp.so.1",), []),
        ("litert-lm", ("libgomp.so.1", "libvulkan.so.1", "libXext.so.6"), []),
    ],
)
def test_vulkan_s_loader_is_there(
    tmp_path: Path, engines: str, libraries: tuple[str, ...], packages: list[str]
) -> None:
    """The loader, and what NVIDIA's part of it is linked to and the driver does not bring: "libXext.so.6: cannot open
    shared object file" (NVIDIA/nvidia-container-toolkit#16). No other Vulkan driver: LiteRT-LM would take a software
    one and fall over it (leehack/llamadart#572).
    """
    assert _installed(tmp_path, engines, libraries) == packages


def test_both_stages_speak_of_the_same_engines() -> None:
    text = DOCKERFILE.read_text()
    assert text.index('ARG ENGINES="') < text.index("FROM "), "a default before the first stage is that of all stages"
    assert len(re.findall(r"^ARG ENGINES$", text, re.MULTILINE)) == 2


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
    for name, default in re.findall(r"^ARG (\w+)=(\w+)$", text, re.MULTILINE):
        text = text.replace(f"${{{name}}}", default)
    named = set(re.findall(r"-r (\S+\.txt)", text)) - {"build-requirements.txt", "compile.txt"}
    engines = re.search(r'ARG ENGINES="([^"]*)"', text)
    if engines is not None:
        named = named - {"$engine.txt"} | {f"{engine}.txt" for engine in engines[1].split()}
    assert named == {Path(lock).name for lock in IMAGE_LOCKS[image]}


def test_vllm_s_image_is_of_the_version_that_is_locked() -> None:
    """The release that the tests run may be an earlier one: tests/unit/controller/engines/test_vllm_flags.py has what
    changed since."""
    version = read_version(LOCKED)
    settings = ControllerSettings.model_fields["image_vllm"]
    assert settings.default == f"vllm/vllm-openai:v{version}"
    assert f"`vllm/vllm-openai:v{version}-cu129`" in (settings.description or "")
    assert f"`vllm/vllm-openai:v{version}-cu129`" in (REPOSITORY / "docs/images.md").read_text()

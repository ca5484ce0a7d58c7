"""What images hold, known vulnerabilities in them, and what the worker's image installs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tests.supply_chain.audit import Audit, judge_audits, list_requirements, read_report
from tests.supply_chain.locks import Pin
from tests.supply_chain.page_lock import PagePackage, read_page_lock
from tests.supply_chain.sbom import ImageContents, build_sbom

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


def test_nothing_found() -> None:
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
def test_vulkan_s_loader_is_there_where_litert_lm_is(
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

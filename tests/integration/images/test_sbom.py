"""The SBOM of each image, against the locks that it was built from, and the gateway's compiled files."""

from __future__ import annotations

import json
import subprocess
import tomllib
from typing import Any

import pytest

from tests.supply_chain.locks import IMAGE_LOCKS, REPOSITORY, read_image_locks
from tests.supply_chain.sbom import build_sbom, make_sbom, read_image
from tests.support.docker_engine import engine_answers, images
from tests.support.require import require

pytestmark = [pytest.mark.engines, pytest.mark.docker]


@pytest.fixture(scope="module")
def built() -> dict[str, str]:
    require("docker", *engine_answers())
    return images()


def packages(sbom: dict[str, Any], kind: str) -> dict[str, tuple[str, frozenset[str]]]:
    """Version and hashes by name, of the components of one kind."""
    return {
        each["name"]: (
            each["version"],
            frozenset(
                digest["content"]
                for reference in each.get("externalReferences", ())
                for digest in reference.get("hashes", ())
            ),
        )
        for each in sbom["components"]
        if each["purl"].startswith(f"pkg:{kind}/")
    }


@pytest.mark.parametrize("name", IMAGE_LOCKS)
def test_an_image_holds_what_is_locked_and_nothing_else(built: dict[str, str], name: str) -> None:
    contents = read_image(name, built[name])
    pins = read_image_locks(name, contents.environment)
    made = json.loads(build_sbom(name, built[name], contents, pins))
    assert "libc6" in packages(made, "deb"), "those of the base are listed too"
    listed = packages(made, "pypi")
    version, hashes = listed.pop("roundhouse")
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    assert (version, hashes) == (project["version"], frozenset()), "our own, from no index"
    assert listed == {pin.name: (pin.version, pin.hashes) for pin in pins.values()}
    assert ("react" in packages(made, "npm")) is (name == "gateway"), "the page is in the gateway's image alone"


def test_an_image_without_python_of_ours_lists_its_base(built: dict[str, str]) -> None:
    made = json.loads(make_sbom("llama-server", built["llama-server"]))
    assert "libc6" in packages(made, "deb")
    assert packages(made, "pypi") == {}
    assert made["metadata"]["component"]["name"] == "roundhouse/llama-server"


def test_the_gateway_s_hot_path_is_compiled_in_its_image(built: dict[str, str]) -> None:
    program = "import gateway.exchange.exchange as module; print(module.__file__)"
    command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "/opt/roundhouse/bin/python"]
    shown = subprocess.run([*command, built["gateway"], "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip().endswith(".so")

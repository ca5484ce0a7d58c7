"""`make sbom`: what is installed in the images, as CycloneDX, one file for each image.

Read from the image itself: Python packages from their metadata, Debian's from dpkg. The hashes of a Python package are
those of its lock, one of which its distribution had when pip installed it. A package without hashes is in no lock.
Nothing says which npm packages the bundled page holds pieces of: an image with the page lists all that its lock has for
it, with their hashes.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final
from uuid import NAMESPACE_URL, uuid5

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL
from packaging.utils import canonicalize_name

from tests.supply_chain.locks import IMAGE_LOCKS, REPOSITORY, Pin, read_image_locks
from tests.supply_chain.page_lock import PAGE_LOCK, PagePackage, read_page_lock

IMAGES: Final = (*IMAGE_LOCKS, "llama-server")
PYTHON: Final = "/opt/roundhouse/bin/python"
_PYTHON_PACKAGES: Final = """
import importlib.metadata, json, os, pathlib, platform, sys
print(json.dumps({
    "environment": {
        "implementation_name": sys.implementation.name, "implementation_version": platform.python_version(),
        "os_name": os.name, "platform_machine": platform.machine(), "platform_release": platform.release(),
        "platform_system": platform.system(), "platform_version": platform.version(), "sys_platform": sys.platform,
        "python_full_version": platform.python_version(), "extra": "",
        "platform_python_implementation": platform.python_implementation(),
        "python_version": ".".join(platform.python_version_tuple()[:2]),
    },
    "packages": [[each.metadata["Name"], each.version] for each in importlib.metadata.distributions()],
    "has_page": any(pathlib.Path(each, "gateway/page/built/index.html").is_file() for each in sys.path),
}))
"""


@dataclass(frozen=True, slots=True)
class ImageContents:
    image_id: str
    created: datetime
    python_packages: Mapping[str, str]
    """Version by canonical name."""
    environment: Mapping[str, str]
    """Values of the markers of requirements; empty: there is no Python of ours."""
    debian_packages: tuple[tuple[str, str, str], ...]
    """Name, version and architecture."""
    page_packages: tuple[PagePackage, ...] = ()
    """Those that the page may hold pieces of; empty: the image holds no page."""


def read_image(name: str, image: str) -> ImageContents:
    """What is installed in an image of Roundhouse's. Raises CalledProcessError: there is none, or no Docker Engine."""
    image_id, created = _docker("image", "inspect", "--format", "{{.Id}} {{.Created}}", image).split()
    debian = _run_inside(image, "dpkg-query", "-W", "-f", "${Package}\t${Version}\t${Architecture}\n")
    found = json.loads(_run_inside(image, PYTHON, "-Ic", _PYTHON_PACKAGES)) if name in IMAGE_LOCKS else {}
    return ImageContents(
        image_id,
        datetime.fromisoformat(created[:19] + "+00:00"),
        {canonicalize_name(package): version for package, version in found.get("packages", ())},
        found.get("environment", {}),
        tuple((line.split("\t")[0], line.split("\t")[1], line.split("\t")[2]) for line in debian.splitlines()),
        read_page_lock(PAGE_LOCK.read_text()) if found.get("has_page") else (),
    )


def build_sbom(name: str, image: str, contents: ImageContents, pins: Mapping[str, Pin]) -> str:
    """The SBOM as JSON: the same contents, the same text."""
    bom = Bom(serial_number=uuid5(NAMESPACE_URL, f"roundhouse/{name}/{contents.image_id}"))
    bom.metadata.timestamp = contents.created
    described = Component(
        name=f"roundhouse/{name}", version=contents.image_id, type=ComponentType.CONTAINER, bom_ref=image
    )
    bom.metadata.component = described
    for package, version in contents.python_packages.items():
        pin = pins.get(package)
        hashes = pin.hashes if pin is not None and pin.version == version else frozenset()
        bom.components.add(_python_component(package, version, hashes))
    for package, version, architecture in contents.debian_packages:
        bom.components.add(_debian_component(package, version, architecture))
    for page_package in contents.page_packages:
        bom.components.add(_npm_component(page_package))
    bom.register_dependency(described, bom.components)
    return JsonV1Dot6(bom).output_as_string(indent=2)


def _python_component(name: str, version: str, hashes: frozenset[str]) -> Component:
    purl = PackageURL("pypi", None, name, version)
    source = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://pypi.org/simple/{name}/"),
        comment="one of these distributions",
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=digest) for digest in sorted(hashes)],
    )
    references = [source] if hashes else []
    return Component(
        name=name,
        version=version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        external_references=references,
    )


def _debian_component(name: str, version: str, architecture: str) -> Component:
    purl = PackageURL("deb", "debian", name, version, {"arch": architecture})
    return Component(name=name, version=version, type=ComponentType.LIBRARY, purl=purl, bom_ref=str(purl))


def _npm_component(package: PagePackage) -> Component:
    scope, _, name = package.name.rpartition("/")
    purl = PackageURL("npm", scope or None, name, package.version)
    source = ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(f"https://www.npmjs.com/package/{package.name}/v/{package.version}"),
        hashes=[HashType(alg=HashAlgorithm.SHA_512, content=package.sha512)],
    )
    return Component(
        name=name,
        group=scope or None,
        version=package.version,
        type=ComponentType.LIBRARY,
        purl=purl,
        bom_ref=str(purl),
        external_references=[source],
    )


def make_sbom(name: str, image: str) -> str:
    contents = read_image(name, image)
    pins = read_image_locks(name, contents.environment) if name in IMAGE_LOCKS else {}
    return build_sbom(name, image, contents, pins)


def _run_inside(image: str, program: str, *arguments: str) -> str:
    flags = ("--rm", "--network", "none", "--read-only", "--cap-drop", "ALL", "--entrypoint", program)
    return _docker("run", *flags, image, *arguments)


def _docker(*arguments: str) -> str:
    return subprocess.run(["docker", *arguments], capture_output=True, text=True, check=True).stdout


def main() -> None:
    """One file for each image, of those that `make images` builds."""
    parser = argparse.ArgumentParser(prog="make sbom ARGS=")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(IMAGES)}; default: all")
    parser.add_argument("--prefix", default="roundhouse", help="images are PREFIX/NAME:TAG")
    parser.add_argument("--tag", default="latest")
    parser.add_argument("--out", type=Path, default=REPOSITORY / "sbom", help="folder (default: sbom)")
    arguments = parser.parse_args()
    if unknown_names := set(arguments.names) - set(IMAGES):
        parser.error(f"no image {unknown_names.pop()}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name in arguments.names or IMAGES:
        file = arguments.out / f"{name}.cdx.json"
        file.write_text(make_sbom(name, f"{arguments.prefix}/{name}:{arguments.tag}") + "\n")
        print(file)


if __name__ == "__main__":
    main()

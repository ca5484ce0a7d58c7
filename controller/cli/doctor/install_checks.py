"""Checks of the installation: settings, folders, ports, desired state, model files, programs and images. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final

from controller.cli.doctor.facts import FolderFacts, HostFacts
from controller.cli.doctor.finding import Check, Finding, fault, warning

OTHERS_MAY_WRITE: Final = 0o002
OTHERS_MAY_READ: Final = 0o005


def check_settings(facts: HostFacts) -> Iterator[Finding]:
    """Yield a warning for each `ROUNDHOUSE_` variable that has no effect."""
    for variable, explanation in facts.setting_problems:
        yield warning(f"{variable}: {explanation}", "correct its name, or remove it; docs/settings.md lists all")


def check_folders(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: folders that are missing, that this user may not use as Roundhouse must, or that every user may
    write to; and a warning where other users may read or enter a folder in which Roundhouse keeps secrets. A missing
    state folder is no finding where this user may make it."""
    for folder in facts.folders:
        yield from _check_folder(folder)


def _check_folder(folder: FolderFacts) -> Iterator[Finding]:
    subject = f"{folder.purpose} {folder.path}"
    names_another = f"{folder.variable} names another folder"
    if folder.kind == "other":
        yield fault(f"{subject} is not a folder", f"move it away, or let {folder.variable} name a folder")
    elif folder.kind == "unreachable":
        yield fault(
            f"{subject} cannot be reached: this user may not enter a folder above it",
            f"`namei -l {folder.path}` shows which one; {names_another}",
        )
    elif folder.kind == "missing" and not folder.is_written:
        yield fault(f"{subject} does not exist", f"`mkdir -p {folder.path}`; {names_another}")
    elif folder.kind == "missing":
        if not folder.is_writable:
            yield fault(
                f"{subject} does not exist, and this user may not make it",
                f"make it as root and give it to this user (`chown`); {names_another}",
            )
    else:
        yield from _check_rights(folder, subject)


def _check_rights(folder: FolderFacts, subject: str) -> Iterator[Finding]:
    if not folder.is_readable:
        yield fault(f"{subject}: this user may not list and enter it", f"`chmod u+rx {folder.path}`, or `chown` it")
    if folder.is_written and not folder.is_writable:
        yield fault(
            f"{subject}: this user may not write to it, or its file system is read-only",
            f"`chown -R USER {folder.path}`; {folder.variable} names another folder",
        )
    elif folder.foreign_file is not None:
        yield fault(
            f"{subject}: this user may not write its file {folder.foreign_file}",
            f"`chown -R USER {folder.path}`: another user, such as root, ran Roundhouse here before",
        )
    if folder.mode & OTHERS_MAY_WRITE:
        yield fault(
            f"{subject}: every user of this host may write to it (mode {folder.mode:o})", f"`chmod o-w {folder.path}`"
        )
    elif folder.is_written and folder.mode & OTHERS_MAY_READ:
        yield warning(
            f"{subject}: other users of this host may look into it (mode {folder.mode:o}); it holds secrets",
            f"`chmod 700 {folder.path}`",
        )


def check_ports(facts: HostFacts) -> Iterator[Finding]:
    """Yield faults: why clients could not use the gateway at its addresses. It cannot listen there, or it would refuse
    every request, because the addresses are not loopback, no keys are declared, and no setting opens it."""
    ports = facts.ports
    if ports.problem is not None:
        yield fault(ports.problem, "`ss -ltnp` shows who listens; ROUNDHOUSE_PORT and ROUNDHOUSE_HOST choose another")
    if ports.is_exposed and not ports.is_open and facts.desired.key_count == 0 and not facts.desired.problems:
        yield fault(
            f"ROUNDHOUSE_HOST={','.join(ports.hosts)} is not loopback, and no keys are declared: every request is "
            "refused",
            f"`roundhouse key new NAME > {facts.desired.folder}/key-NAME.yaml`, or ROUNDHOUSE_OPEN=1",
        )


def check_desired(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each problem of the desired-state files."""
    for problem in facts.desired.problems:
        yield fault(problem, "correct the file; until then the last valid state stays in force")


def check_models(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each declared model, enabled or not, whose model files keep it from starting."""
    for model in facts.desired.models:
        if model.problem is not None:
            yield fault(
                f"{model.name}: {model.problem}",
                "put the file there, or correct the definition; ROUNDHOUSE_MODELS names the models folders",
            )


def check_programs(facts: HostFacts) -> Iterator[Finding]:
    """Yield a fault for each model whose engine's program or Python package, and each MCP server whose program, is not
    on this host. Nothing where engines run in containers: then the image has them."""
    for model in () if facts.docker.is_used else facts.desired.models:
        if model.program_problem is not None:
            yield fault(
                f"{model.name}: {model.program_problem}",
                "install it, take another backend, or let engines run in containers (ROUNDHOUSE_RUNTIME=docker)",
            )


def check_images(facts: HostFacts) -> Iterator[Finding]:
    """Yield a warning for each image that declared models need and Docker does not have, and one where it is not known
    which images Docker has. Nothing where engines run as processes."""
    docker = facts.docker
    if not docker.is_used:
        return
    if docker.unknown_images is not None:
        yield warning(f"it is not known which images are there: {docker.unknown_images}", "ask again")
    for image, remedy in docker.missing_images:
        yield warning(f"image {image} is not on this host", remedy)


INSTALL_CHECKS: Final[Mapping[str, Check]] = MappingProxyType(
    {
        "settings": check_settings,
        "folders": check_folders,
        "ports": check_ports,
        "desired state": check_desired,
        "model files": check_models,
        "programs": check_programs,
        "images": check_images,
    }
)
"""Name to check, in the order in which they are shown."""

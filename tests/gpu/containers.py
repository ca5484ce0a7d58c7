"""A program in a container that is as restricted as an engine's, on the claimed GPUs."""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import docker
import requests

from controller.engines.base import Launch
from controller.engines.stub import StubDefinition
from controller.runtimes.docker.container_spec import UNPRIVILEGED, HostContext, UserIdentity, container_config
from controller.runtimes.docker.containers import create_container
from tests.gpu import cuda_devices
from tests.support.runtime_contract import request_for

LIMIT_S: Final = 120
_NVIDIA_SMI: Final = "nvidia-smi -L; echo; "
_LIST_DEVICES: Final = "/app/llama-server --list-devices"


@dataclass(frozen=True, slots=True)
class ContainerRun:
    """What a program printed in a container, and how it ended. `refusal`: why it was not started; None: it was."""

    output: str
    code: int = 0
    refusal: str | None = None


def check_command(kind: str) -> list[str]:
    """What tells in an image of this kind what CUDA sees: our own program where there is Python, else llama-server."""
    if kind == "llama-server":
        return ["/bin/sh", "-c", _NVIDIA_SMI + _LIST_DEVICES]
    source = shlex.quote(Path(cuda_devices.__file__).read_text())
    python = "python3" if kind == "vllm" else "/opt/roundhouse/bin/python"
    return ["/bin/sh", "-c", f"{_NVIDIA_SMI}{python} -c {source}"]


def restricted_config(image: str, command: Sequence[str], claims: Mapping[str, int]) -> dict[str, Any]:
    """A container as the controller makes one for an engine of user 10001, but without network, models and cache."""
    instance = f"gpu{secrets.token_hex(3)}"
    definition = StubDefinition.model_validate({"backend": "stub", "image": image, "gpus": list(claims)})
    request = request_for(instance, definition, image, "check", 1, claims)
    host = HostContext(instance, "none", publishes_ports=False, models=(None,), log_mib=2)
    launch = Launch(tuple(command), image=image)
    config = container_config(request, launch, UserIdentity(UNPRIVILEGED, UNPRIVILEGED), host, time.time())
    config["HostConfig"] |= {"Mounts": [], "AutoRemove": False}
    config["HostConfig"]["Tmpfs"]["/cache"] = "rw,mode=1777"
    return config


def run_container(config: Mapping[str, Any], name: str) -> ContainerRun:
    """Run it to its end, and remove it."""
    client = docker.from_env(version="auto", timeout=LIMIT_S).api
    try:
        made = create_container(client, name, config)
        try:
            client.start(made)
            code = int(client.wait(made, timeout=LIMIT_S)["StatusCode"])
            return ContainerRun(client.logs(made).decode(errors="replace"), code)
        finally:
            client.remove_container(made, force=True, v=True)
    except (docker.errors.APIError, requests.RequestException) as error:
        return ContainerRun("", 1, str(getattr(error, "explanation", None) or error))
    finally:
        client.close()


def read_cuda_answer(output: str) -> dict[str, Any] | None:
    """The last line that is an object of JSON; None: there is none."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            answer: dict[str, Any] = json.loads(line)
            return answer
    return None

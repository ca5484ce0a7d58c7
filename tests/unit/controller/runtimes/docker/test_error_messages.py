"""The daemon's sentences, as they were seen or as its sources have them, in plain words."""

from __future__ import annotations

import pytest

from controller.runtimes.docker.error_messages import no_gpu_support, pull_error, start_error


@pytest.mark.parametrize(
    ("message", "words", "permanent"),
    [
        ('could not select device driver "" with capabilities: [[gpu compute utility]]', "no NVIDIA runtime", True),
        ("failed to discover GPU vendor from CDI: no known GPU vendor found", "no NVIDIA runtime", True),
        (
            "failed to create shim task: OCI runtime create failed: nvidia-container-cli: device error: GPU-12: "
            "unknown device: unknown",
            "this host has no GPU GPU-12 ",
            False,
        ),
        (
            "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-12",
            "this host has no GPU nvidia.com/gpu=GPU-12 ",
            False,
        ),
        (
            "OCI runtime create failed: nvidia-container-cli: initialization error: load library failed: "
            "libnvidia-ml.so.1: cannot open shared object file",
            "the NVIDIA driver of this host is not loaded",
            False,
        ),
        (  # vllm-project/vllm#18813
            "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
            "failed: unable to start container process: error during container init: error running prestart hook #0: "
            "exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: "
            "unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda "
            "container: unknown",
            "this host's NVIDIA driver is too old for image e:1, which asks for cuda>=12.8: update the driver, or take "
            "an image of an earlier CUDA (docs/images.md)",
            True,
        ),
        (  # NVIDIA/nvidia-container-toolkit#24: earlier releases name the last condition that they tried
            "nvidia-container-cli: requirement error: unsatisfied condition: brand = quadrortx: unknown",
            "too old for image e:1, which asks for brand = quadrortx: update",
            True,
        ),
        (  # internal/modifier/csv.go and internal/requirements of the toolkit, on Tegra
            "failed to create NVIDIA Container Runtime: requirements not met: unsatisfied condition: cuda>=13.0 "
            "(cuda=12.6)",
            "too old for image e:1, which asks for cuda>=13.0: update",
            True,
        ),
        (
            "nvidia-container-cli: requirement error: unsatisfied condition: arch >= 8.0: unknown",
            "this host's GPU is not one that image e:1 is made for, which asks for arch >= 8.0 ",
            True,
        ),
        ('exec: "docker-init": executable file not found in $PATH', "lacks its docker-init program", False),
        (
            'invalid mount config for type "bind": bind source path does not exist: /srv/models',
            "the models folder /srv/models does not exist where",
            False,
        ),
        ("network rh not found", "Docker network rh is missing", False),
        ("driver failed programming external connectivity: Bind: port is already allocated", "port taken", False),
        ("write /x: no space left on device", "the disk of the Docker daemon is full", False),
        ("Minimum memory limit allowed is 6MB", "memory_mib is too small", True),
        ("No such image: e:1", "image e:1 is missing", False),
        ("invalid reference format: repository name must be lowercase", "is not a valid image reference", True),
        ("something new", "Docker did not start it", False),
    ],
)
def test_refused_starts(message: str, words: str, permanent: bool) -> None:
    error = start_error(message, "e:1")
    assert words in str(error)
    assert message in str(error), "the daemon's own sentence is kept"
    assert error.plain is not None
    assert message not in error.plain, "and is for operators alone"
    assert error.permanent is permanent


def test_only_missing_support_means_no_gpu() -> None:
    assert no_gpu_support('could not select device driver "" with capabilities: [[gpu]]')
    assert not no_gpu_support("nvidia-container-cli: initialization error: driver error")


@pytest.mark.parametrize(
    ("message", "words"),
    [
        ("manifest for a/b:1 not found: manifest unknown: manifest unknown", "is not in its registry ("),
        (
            "pull access denied for a/b, repository does not exist or may require 'docker login': denied: requested "
            "access to the resource is denied",
            "or needs a `docker login`",
        ),
        ("unauthorized: authentication required", "or needs a `docker login`"),
        ("toomanyrequests: You have reached your pull rate limit", "allows no more pulls"),
        ('Get "https://r/v2/": dial tcp: lookup r: no such host', "registry cannot be reached"),
        ('Get "https://r/v2/": net/http: request canceled: Client.Timeout exceeded', "registry cannot be reached"),
        ("no matching manifest for linux/arm64/v8 in the manifest list entries", "kind of processor"),
        ("failed to register layer: no space left on device", "disk of the Docker daemon is full"),
        ("invalid reference format", "is not a valid image reference"),
        ("something new", "was not pulled: something new"),
    ],
)
def test_failed_pulls(message: str, words: str) -> None:
    error = pull_error(message, "a/b:1")
    text = str(error)
    assert text.startswith(f"{error.plain}")
    assert error.plain is not None
    assert message not in error.plain
    assert text.startswith("image a/b:1 ")
    assert words in text
    assert message in text

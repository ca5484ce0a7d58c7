"""What images ask of the driver and of the dynamic loader, and the daemon's sentences in plain words."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from controller.hosts import GpuDriver
from controller.runtimes.docker.start_problems import (
    find_driver_problem,
    find_loader_problem,
    is_fulfilled,
    list_requirements,
    no_gpu_support,
    pull_error,
    start_error,
)

BRANDS = ("unknown", "grid", "tesla", "nvidia", "quadro", "quadrortx", "nvidiartx", "vapps", "vpc", "vcs", "vws")


def of_cuda(version: str, branches: Iterable[int]) -> str:
    """The variable of nvidia/cuda's images: 12.8.1 and 13.0.2 were read whole, GeForce is in neither."""
    brands = (*BRANDS, "cloudgaming")
    alternatives = (f"brand={brand},driver>={each},driver<{each + 1}" for each in branches for brand in brands)
    return " ".join((f"cuda>={version}", *alternatives))


CUDA_13 = of_cuda("13.0", (535, 550, 565, 570, 575))
CUDA_12_9 = of_cuda("12.9", (535, 550, 560, 565, 570))
CUDA_9 = "cuda>=9.0"
ON_570 = GpuDriver("570.195.03", "12.8", ("geforce",))
ON_550 = GpuDriver("550.144.03", "12.4", ("geforce",))
ON_580 = GpuDriver("580.65.06", "13.0", ("geforce",))


def problem_of(requirement: str, driver: GpuDriver | None, **own_env: str) -> str | None:
    image_env = ("PATH=/usr/bin", f"NVIDIA_REQUIRE_CUDA={requirement}", "CUDA_VERSION=13.0.2")
    return find_driver_problem("v:1", image_env, own_env, driver)


def test_a_driver_of_an_earlier_major_version_is_told_with_both_versions_and_the_cure() -> None:
    assert problem_of(CUDA_13, ON_570) == (
        "image v:1 asks for cuda>=13.0, and this host's NVIDIA driver is 570.195.03, which runs CUDA up to 12.8: "
        "update the driver (CUDA 13 needs 580 or later), or take an image of an earlier CUDA (docs/images.md)"
    )


def test_one_of_the_same_major_version_is_refused_as_the_toolkit_does_and_told_how_it_runs_all_the_same() -> None:
    problem = problem_of(CUDA_12_9, ON_550)
    assert problem == (
        "image v:1 asks for cuda>=12.9, and this host's NVIDIA driver is 550.144.03, which runs CUDA up to 12.4: "
        "update the driver, or take an image of an earlier CUDA (docs/images.md), or, as the driver's CUDA is of the "
        'same major version, try NVIDIA_DISABLE_REQUIRE: "1" in the definition\'s `env`'
    )
    assert problem_of(CUDA_12_9, ON_550, NVIDIA_DISABLE_REQUIRE="1") is None


@pytest.mark.parametrize(
    ("requirement", "driver"),
    [
        (CUDA_13, ON_580),
        (CUDA_13, GpuDriver("590.48.01", "13.1", ("tesla",))),
        (CUDA_12_9, ON_580),
        (CUDA_9, ON_550),
        *((CUDA_13, GpuDriver("570.195.03", "12.8", brands)) for brands in (("nvidia",), ("geforce", "nvidia"), ())),
        (CUDA_13, GpuDriver("570.195.03", None, ("geforce",))),
        (CUDA_13, GpuDriver(None, "12.8", ("nvidia",))),
        (CUDA_13, GpuDriver()),
        (CUDA_13, None),
    ],
)
def test_who_fulfils_it_and_of_whom_it_is_not_known_may_start(requirement: str, driver: GpuDriver | None) -> None:
    assert problem_of(requirement, driver) is None
    assert find_driver_problem("v:1", ("PATH=/usr/bin", "NVIDIA_REQUIRE_CUDA="), {}, driver) is None


@pytest.mark.parametrize(
    ("requirement", "driver", "words"),
    [
        ("driver>=600", GpuDriver("570.195.03"), "asks for driver>=600, and this host's NVIDIA driver is 570.195.03: "),
        ("cuda>=13.0", GpuDriver(None, "12.8"), "is of a version that it does not tell, which runs CUDA up to 12.8: "),
        ("cuda>=14.0", ON_580, "which runs CUDA up to 13.0: update the driver, or take"),
        ("brand=tesla", ON_580, "asks for brand=tesla, and this host's"),
        ("cuda>=13.0,driver>=580", ON_570, "update the driver (CUDA 13 needs 580 or later), or take"),
        ("  cuda>=13.0", ON_570, "asks for cuda>=13.0, and"),
    ],
)
def test_what_is_told_of_what_is_known(requirement: str, driver: GpuDriver, words: str) -> None:
    assert words in (problem_of(requirement, driver) or "")


@pytest.mark.parametrize(
    ("variables", "driver", "words"),
    [
        (
            ("NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_DRIVER=driver>=580"),
            ON_570,
            "asks for driver>=580, and",
        ),
        (
            ("NVIDIA_REQUIRE_CUDA=brand=tesla", "NVIDIA_REQUIRE_X=brand=geforce"),
            GpuDriver("580.65.06", "13.0", ("geforce", "tesla")),
            "asks for brand=tesla, and",
        ),
    ],
    ids=["one of two", "two that no GPU fulfils together"],
)
def test_the_requirement_that_is_not_fulfilled_is_named(
    variables: tuple[str, ...], driver: GpuDriver, words: str
) -> None:
    assert words in (find_driver_problem("v:1", variables, {}, driver) or "")


@pytest.mark.parametrize(
    ("variables", "own", "requirements"),
    [
        ((), {}, []),
        (("NVIDIA_REQUIRE_CUDA=cuda>=12.8 brand=tesla", "CUDA_VERSION=12.8.1"), {}, ["cuda>=12.8 brand=tesla"]),
        (("CUDA_VERSION=8.0.61",), {}, ["cuda>=8.0"]),
        (("CUDA_VERSION=13",), {}, ["cuda>=13.0"]),
        (("CUDA_VERSION=latest",), {}, []),
        (("NVIDIA_REQUIRE_CUDA=", "CUDA_VERSION=12.8.1"), {}, ["cuda>=12.8"]),
        (("NVIDIA_REQUIRE_CUDA=a", "NVIDIA_REQUIRE_DRIVER=b", "NVIDIA_REQUIRE_JETPACK=csv-mounts=all"), {}, ["a", "b"]),
        (("NVIDIA_REQUIRE_CUDA=a",), {"NVIDIA_REQUIRE_CUDA": "b"}, ["b"]),
        (("NVIDIA_REQUIRE_CUDA=a", "NVIDIA_DISABLE_REQUIRE=true"), {}, []),
        (("NVIDIA_REQUIRE_CUDA=a", "NVIDIA_DISABLE_REQUIRE=0"), {}, ["a"]),
        (("NVIDIA_REQUIRE_CUDA=a", "NVIDIA_DISABLE_REQUIRE=1"), {"NVIDIA_DISABLE_REQUIRE": "false"}, ["a"]),
    ],
)
def test_what_an_image_asks_for(variables: tuple[str, ...], own: dict[str, str], requirements: list[str]) -> None:
    assert list_requirements(variables, own) == requirements


CONDITIONS = {
    True: "cuda>=12.8|cuda=12.8.0|cuda<=12.8|cuda<12.10|driver>=570|driver<570.195.3.1|CUDA>=12|brand=Tesla"
    "|brand=geforce brand=tesla|arch>=9.0 cuda>=12.8|| , ,, ",
    False: "cuda>12.8|cuda!=12.8|driver>570.195.3|brand!=tesla|brand=geforce,cuda>=99|brand=geforce,cuda>=1 cuda>=99"
    "|arch>=9.0,cuda>=99|,cuda>=99,",
    None: "brand>tesla|arch>=9.0|arch>=9.0 cuda>=99|cuda|cuda>=|cuda>=x|cuda==12.8|>=12.8",
}


@pytest.mark.parametrize(
    ("requirement", "answer"), [(each, answer) for answer, texts in CONDITIONS.items() for each in texts.split("|")]
)
def test_a_requirement_of_an_image_is_compared_with_the_driver(requirement: str, answer: bool | None) -> None:
    assert is_fulfilled(requirement, GpuDriver("570.195.03", "12.8"), "tesla") is answer


def test_an_unknown_brand_leaves_open_what_depends_on_it() -> None:
    driver = GpuDriver("570.195.03", "12.8")
    assert is_fulfilled("brand=tesla,driver>=570", driver, None) is None
    assert is_fulfilled("brand=tesla,driver>=580", driver, None) is False


CUDA = ("PATH=/usr/local/nvidia/bin:/usr/bin", "LD_LIBRARY_PATH=/usr/local/nvidia/lib:/usr/local/nvidia/lib64")
"""Of nvidia/cuda, and so of vLLM's and llama.cpp's images; later ones say /usr/local/cuda/lib64."""


@pytest.mark.parametrize(
    "environment",
    [
        (),
        CUDA,
        *((f"LD_LIBRARY_PATH={path}",) for path in ("/usr/local/cuda/lib64", "/opt/proc/lib:/device/lib")),
        ("LD_PRELOAD=", "LD_LIBRARY_PATH="),
        ("OLD_PRELOAD=/a.so", "A=LD_PRELOAD=/a.so"),
    ],
)
def test_images_that_may_have_gpus(environment: tuple[str, ...]) -> None:
    assert find_loader_problem("i:1", environment, {}) is None


ON_THE_HOST = {
    "LD_PRELOAD": ["/proc/self/cwd/its.so", "libtcmalloc.so"],
    "LD_AUDIT": ["/proc/self/cwd/its.so"],
    "LD_DEBUG_OUTPUT": ["/etc/cron.d/x"],
    "LD_LIBRARY_PATH": [
        *("/proc/self/cwd/lib", "/usr/lib:/./proc//self/cwd", "/usr/../proc/1/cwd", "//proc/self/cwd", "/dev/fd/7"),
        *("/proc", "lib", "./lib;/usr/lib", "/usr/lib:", ":/usr/lib", "/usr/lib;$ORIGIN/x", "/usr/$LIB/x"),
    ],
}
"""Values that the loader would look up on the host."""


@pytest.mark.parametrize(("name", "value"), [(name, value) for name, values in ON_THE_HOST.items() for value in values])
def test_images_that_get_no_gpus(name: str, value: str) -> None:
    assert find_loader_problem("i:1", (*CUDA[:1], f"{name}={value}"), {"PATH": "/bin"}) == (
        f"image i:1 sets {name}, which NVIDIA's hooks would follow on the host as root (CVE-2025-23266), so it gets no"
        f" GPUs: take another image, or set {name} in the definition's `env` (empty: none)"
    )


@pytest.mark.parametrize("value", ["", "/opt/lib/mine.so"])
def test_what_the_definition_sets_itself_is_the_operator_s(value: str) -> None:
    assert find_loader_problem("i:1", ("LD_PRELOAD=/proc/self/cwd/its.so",), {"LD_PRELOAD": value}) is None


UNSATISFIED = "nvidia-container-cli: requirement error: unsatisfied condition: "
REFUSED_FOR_GOOD = {
    'could not select device driver "" with capabilities: [[gpu compute utility]]': "no NVIDIA runtime",
    "failed to discover GPU vendor from CDI: no known GPU vendor found": "no NVIDIA runtime",
    # vllm-project/vllm#18813
    (
        "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create "
        "failed: unable to start container process: error during container init: error running prestart hook #0: "
        "exit status 1, stdout: , stderr: Auto-detected mode as 'legacy'\nnvidia-container-cli: requirement error: "
        "unsatisfied condition: cuda>=12.8, please update your driver to a newer version, or use an earlier cuda "
        "container: unknown"
    ): (
        "this host's NVIDIA driver is too old for image e:1, which asks for cuda>=12.8: update the driver, or take "
        "an image of an earlier CUDA (docs/images.md)"
    ),
    # NVIDIA/nvidia-container-toolkit#24: earlier releases name the last condition that they tried
    f"{UNSATISFIED}brand = quadrortx: unknown": "too old for image e:1, which asks for brand = quadrortx: update",
    # internal/modifier/csv.go and internal/requirements of the toolkit, on Tegra
    (
        "failed to create NVIDIA Container Runtime: requirements not met: unsatisfied condition: cuda>=13.0 (cuda=12.6)"
    ): "too old for image e:1, which asks for cuda>=13.0: update",
    f"{UNSATISFIED}arch >= 8.0: unknown": (
        "this host's GPU is not one that image e:1 is made for, which asks for arch >= 8.0 "
    ),
    "Minimum memory limit allowed is 6MB": "memory_mib is too small",
    "invalid reference format: repository name must be lowercase": "is not a valid image reference",
}
REFUSED_NOW = {
    (
        "failed to create shim task: OCI runtime create failed: nvidia-container-cli: device error: GPU-12: "
        "unknown device: unknown"
    ): "this host has no GPU GPU-12 ",
    "CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=GPU-12": "no GPU nvidia.com/gpu=GPU-12 ",
    (
        "OCI runtime create failed: nvidia-container-cli: initialization error: load library failed: "
        "libnvidia-ml.so.1: cannot open shared object file"
    ): "the NVIDIA driver of this host is not loaded",
    'exec: "docker-init": executable file not found in $PATH': "lacks its docker-init program",
    'invalid mount config for type "bind": bind source path does not exist: /srv/m': "folder /srv/m does not exist",
    "network rh not found": "Docker network rh is missing",
    "driver failed programming external connectivity: Bind: port is already allocated": "port taken",
    "write /x: no space left on device": "the disk of the Docker daemon is full",
    "No such image: e:1": "image e:1 is missing",
    "something new": "Docker did not start it",
}


@pytest.mark.parametrize("message", [*REFUSED_FOR_GOOD, *REFUSED_NOW])
def test_a_start_that_docker_refuses_is_explained(message: str) -> None:
    error = start_error(message, "e:1")
    assert (REFUSED_FOR_GOOD | REFUSED_NOW)[message] in str(error)
    assert message in str(error), "the daemon's own sentence is kept"
    assert message not in (error.plain or message), "and is for operators alone"
    assert error.permanent is (message in REFUSED_FOR_GOOD)


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
def test_a_pull_that_fails_is_explained(message: str, words: str) -> None:
    error = pull_error(message, "a/b:1")
    text = str(error)
    assert error.plain is not None
    assert message not in error.plain
    assert error.plain.startswith("image a/b:1 ")
    assert text.startswith(error.plain)
    assert words in text
    assert message in text

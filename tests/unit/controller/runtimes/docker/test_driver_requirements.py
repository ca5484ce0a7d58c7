"""What images ask of the driver, as the images of CUDA, vLLM and llama.cpp have it, and what NVIDIA's toolkit makes of
it."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from controller.gpus import GpuDriver
from controller.runtimes.docker.driver_requirements import find_driver_problem, is_fulfilled, list_requirements

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
        (CUDA_13, GpuDriver("570.195.03", "12.8", ("nvidia",))),
        (CUDA_13, GpuDriver("570.195.03", "12.8", ("geforce", "nvidia"))),
        (CUDA_13, GpuDriver("570.195.03", "12.8")),
        (CUDA_13, GpuDriver("570.195.03", None, ("geforce",))),
        (CUDA_13, GpuDriver(None, "12.8", ("nvidia",))),
        (CUDA_13, GpuDriver()),
        (CUDA_13, None),
        ("", ON_550),
    ],
)
def test_who_fulfils_it_and_of_whom_it_is_not_known_may_start(requirement: str, driver: GpuDriver | None) -> None:
    if requirement:
        assert problem_of(requirement, driver) is None
    assert find_driver_problem("v:1", ("PATH=/usr/bin", f"NVIDIA_REQUIRE_CUDA={requirement}"), {}, driver) is None


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


def test_the_requirement_that_is_not_fulfilled_is_told() -> None:
    variables = ("NVIDIA_REQUIRE_CUDA=cuda>=12.0", "NVIDIA_REQUIRE_DRIVER=driver>=580")
    assert "asks for driver>=580, and" in (find_driver_problem("v:1", variables, {}, ON_570) or "")


def test_two_requirements_that_no_gpu_fulfils_together_are_refused() -> None:
    variables = ("NVIDIA_REQUIRE_CUDA=brand=tesla", "NVIDIA_REQUIRE_X=brand=geforce")
    driver = GpuDriver("580.65.06", "13.0", ("geforce", "tesla"))
    assert "asks for brand=tesla, and" in (find_driver_problem("v:1", variables, {}, driver) or "")


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


@pytest.mark.parametrize(
    ("requirement", "answer"),
    [
        ("cuda>=12.8", True),
        ("cuda>12.8", False),
        ("cuda=12.8.0", True),
        ("cuda!=12.8", False),
        ("cuda<=12.8", True),
        ("cuda<12.10", True),
        ("driver>=570", True),
        ("driver>570.195.3", False),
        ("driver<570.195.3.1", True),
        ("CUDA>=12", True),
        ("brand=Tesla", True),
        ("brand!=tesla", False),
        ("brand>tesla", None),
        ("brand=geforce,cuda>=99", False),
        ("brand=geforce brand=tesla", True),
        ("brand=geforce,cuda>=1 cuda>=99", False),
        ("arch>=9.0", None),
        ("arch>=9.0,cuda>=99", False),
        ("arch>=9.0 cuda>=12.8", True),
        ("arch>=9.0 cuda>=99", None),
        ("cuda", None),
        ("cuda>=", None),
        ("cuda>=x", None),
        ("cuda==12.8", None),
        (">=12.8", None),
        ("", True),
        (" , ,, ", True),
        (",cuda>=99,", False),
    ],
)
def test_conditions(requirement: str, answer: bool | None) -> None:
    assert is_fulfilled(requirement, GpuDriver("570.195.03", "12.8"), "tesla") is answer


def test_an_unknown_brand_leaves_open_what_depends_on_it() -> None:
    driver = GpuDriver("570.195.03", "12.8")
    assert is_fulfilled("brand=tesla,driver>=570", driver, None) is None
    assert is_fulfilled("brand=tesla,driver>=580", driver, None) is False

"""What an image asks of the host's NVIDIA driver, and whether the driver fulfils it. Pure.

CUDA's images say it in `NVIDIA_REQUIRE_CUDA`: conditions such as `driver>=535`, joined by commas (all of them) into
alternatives, which are separated by spaces (one of them). NVIDIA's container toolkit refuses a start where none of the
alternatives is fulfilled: libnvidia-container `src/cli/dsl.c` and `configure.c`, and in nvidia-container-toolkit
`internal/config/image/cuda_image.go` and `internal/requirements/`. A condition is taken as it is written, though CUDA
itself would run an application of the same major version on an older driver (minor version compatibility). Since
Docker 29 (moby/moby#50228) the check is left out where the host has CDI devices.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Final

from controller.state import GpuDriver

_REQUIRE_PREFIX: Final = "NVIDIA_REQUIRE_"
_REQUIRE_CUDA: Final = "NVIDIA_REQUIRE_CUDA"
_REQUIRE_JETPACK: Final = "NVIDIA_REQUIRE_JETPACK"
_DISABLE_REQUIRE: Final = "NVIDIA_DISABLE_REQUIRE"
_CUDA_VERSION: Final = "CUDA_VERSION"
_TRUE: Final = frozenset({"1", "t", "T", "TRUE", "true", "True"})
"""What Go's `strconv.ParseBool` takes for true."""

_CONDITION: Final = re.compile(r"(?P<property>[^<>=!]+)(?P<operator>[<>=!]+)(?P<value>[^<>=!]+)")
_VERSION: Final = re.compile(r"\d+(\.\d+)*")
_COMPARISONS: Final[Mapping[str, Callable[[object, object], bool]]] = {
    "=": lambda left, right: left == right,
    "!=": lambda left, right: left != right,
}
_ORDERINGS: Final[Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]]] = {
    **_COMPARISONS,
    "<": lambda left, right: left < right,
    "<=": lambda left, right: left <= right,
    ">": lambda left, right: left > right,
    ">=": lambda left, right: left >= right,
}
_OLDEST_DRIVERS: Final[Mapping[int, int]] = {11: 450, 12: 525, 13: 580}
"""CUDA's major version to the oldest driver that runs it
(https://docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html)."""
_ANY_MINOR: Final = 999


def find_driver_problem(
    image: str, image_env: Sequence[str], own_env: Mapping[str, str], driver: GpuDriver | None
) -> str | None:
    """Why NVIDIA's container toolkit would not start an image of these variables (`KEY=value`), in words.

    None: it would on one kind of the host's GPUs at least, as far as is known. What the definition sets itself
    (`own_env`) replaces the image's variables.
    """
    requirements = list_requirements(image_env, own_env)
    if driver is None or _is_allowed(requirements, driver):
        return None
    [unfulfilled_requirement, *_] = [each for each in requirements if not _is_allowed([each], driver)] or requirements
    first_alternative = unfulfilled_requirement.split()[0]
    problem = f"image {image} asks for {first_alternative}, and {_describe_driver(driver)}"
    if _is_allowed(requirements, _with_any_minor_version(driver)):
        return (
            f"{problem}: update the driver, or take an image of an earlier CUDA (docs/images.md), or, as the driver's "
            f'CUDA is of the same major version, try {_DISABLE_REQUIRE}: "1" in the definition\'s `env`'
        )
    return (
        f"{problem}: update the driver{_describe_oldest_driver(first_alternative)}, or take an image of an earlier "
        "CUDA (docs/images.md)"
    )


def list_requirements(image_env: Sequence[str], own_env: Mapping[str, str]) -> list[str]:
    """All that a container of these variables asks for; empty: nothing, or it is told not to ask."""
    variables = {**dict(each.partition("=")[::2] for each in image_env), **own_env}
    if variables.get(_DISABLE_REQUIRE) in _TRUE:
        return []
    requirements = [
        value
        for name, value in variables.items()
        if name.startswith(_REQUIRE_PREFIX) and not name.startswith(_REQUIRE_JETPACK)
    ]
    # Images from before CUDA 9, and those that set no more than their version.
    if not variables.get(_REQUIRE_CUDA) and (version := _parse_version(variables.get(_CUDA_VERSION, ""))) is not None:
        major, minor = (*version, 0, 0)[:2]
        requirements.append(f"cuda>={major}.{minor}")
    return [each for each in requirements if each.strip()]


def is_fulfilled(requirement: str, driver: GpuDriver, brand: str | None) -> bool | None:
    """Whether a GPU of this brand, on this driver, fulfils a requirement; None: that is not known.

    The brand's name is the toolkit's; None: the brand is not known. What the driver does not tell, `arch`, properties
    of other releases and what is no condition are not known either.
    """
    alternatives = [[each for each in term.split(",") if each] for term in requirement.split(" ")]
    return _any_of(
        [_all_of([_check_condition(each, driver, brand) for each in factors]) for factors in alternatives if factors]
    )


def _is_allowed(requirements: Sequence[str], driver: GpuDriver) -> bool:
    """False only where no kind of the host's GPUs can fulfil all of them."""
    brands = driver.brands or (None,)
    return any(all(is_fulfilled(each, driver, brand) is not False for each in requirements) for brand in brands)


def _any_of(values: Sequence[bool | None]) -> bool | None:
    if not values or True in values:
        return True
    return None if None in values else False


def _all_of(values: Sequence[bool | None]) -> bool | None:
    if False in values:
        return False
    return None if None in values else True


def _check_condition(condition: str, driver: GpuDriver, brand: str | None) -> bool | None:
    match = _CONDITION.fullmatch(condition)
    if match is None:
        return None
    name, operator, value = match["property"].lower(), match["operator"], match["value"]
    if name == "brand":
        compare_brands = _COMPARISONS.get(operator)
        return None if brand is None or compare_brands is None else compare_brands(brand.lower(), value.lower())
    known_version = _parse_version({"cuda": driver.cuda_version, "driver": driver.version}.get(name) or "")
    asked_version, compare_versions = _parse_version(value), _ORDERINGS.get(operator)
    if known_version is None or asked_version is None or compare_versions is None:
        return None
    return compare_versions(known_version, asked_version)


def _parse_version(text: str) -> tuple[int, ...] | None:
    """The numbers of `12.8.1`, without zeros at the end, which mean nothing; None: it is no version."""
    if not _VERSION.fullmatch(text) or len(text) > 64:
        return None
    numbers = [int(each) for each in text.split(".")]
    while numbers and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def _with_any_minor_version(driver: GpuDriver) -> GpuDriver:
    version = _parse_version(driver.cuda_version or "")
    return replace(driver, cuda_version=f"{version[0]}.{_ANY_MINOR}") if version else driver


def _describe_driver(driver: GpuDriver) -> str:
    words = f"this host's NVIDIA driver is {driver.version or 'of a version that it does not tell'}"
    return words if driver.cuda_version is None else f"{words}, which runs CUDA up to {driver.cuda_version}"


def _describe_oldest_driver(alternative: str) -> str:
    match = re.match(r"cuda>=?(\d+)", alternative, re.IGNORECASE)
    oldest_driver = _OLDEST_DRIVERS.get(int(match[1][:9])) if match else None
    return "" if match is None or oldest_driver is None else f" (CUDA {match[1]} needs {oldest_driver} or later)"

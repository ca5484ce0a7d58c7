"""Whatever an image asks for: what is known decides as NVIDIA's toolkit would, and what is not known refuses nobody."""

from __future__ import annotations

import operator
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from controller.hosts import GpuDriver
from controller.runtimes.docker.start_problems import find_driver_problem, is_fulfilled, list_requirements
from tests.support.campaign import campaign_count

OPERATORS = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
BRANDS = ("tesla", "geforce", "nvidia")

Condition = tuple[str, str, str]

VERSIONS = st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda parts: ".".join(map(str, parts)))
CONDITIONS: st.SearchStrategy[Condition] = st.tuples(
    st.sampled_from(["cuda", "driver"]), st.sampled_from(sorted(OPERATORS)), VERSIONS
) | st.tuples(st.just("brand"), st.sampled_from(["=", "!="]), st.sampled_from(BRANDS))
ALTERNATIVES = st.lists(st.lists(CONDITIONS, min_size=1, max_size=3), min_size=1, max_size=4)
DRIVERS = st.builds(GpuDriver, VERSIONS, VERSIONS)
UNKNOWN_CONDITIONS = st.sampled_from(["arch>=8.0", "os=linux", "cuda", "cuda~1", "driver>=new", "brand<tesla"])


def text_of(alternatives: list[list[Condition]]) -> str:
    return " ".join(",".join("".join(each) for each in factors) for factors in alternatives)


def holds(condition: Condition, driver: GpuDriver, brand: str) -> bool:
    """Of a driver that tells everything; `1.2` is `1.2.0`."""
    name, comparison, value = condition
    if name == "brand":
        return bool(OPERATORS[comparison](brand, value))
    known = driver.cuda_version if name == "cuda" else driver.version
    left, right = ([*map(int, (each or "").split(".")), 0, 0, 0][:3] for each in (known, value))
    return bool(OPERATORS[comparison](left, right))


@given(alternatives=ALTERNATIVES, driver=DRIVERS, brand=st.sampled_from(BRANDS))
@settings(max_examples=campaign_count(60, 5_000))
def test_of_a_driver_that_tells_everything_the_answer_is_that_of_the_conditions(
    alternatives: list[list[Condition]], driver: GpuDriver, brand: str
) -> None:
    expected = any(all(holds(each, driver, brand) for each in factors) for factors in alternatives)
    assert is_fulfilled(text_of(alternatives), driver, brand) is expected


@given(
    alternatives=ALTERNATIVES,
    driver=DRIVERS,
    brand=st.sampled_from(BRANDS),
    hidden=st.sets(st.sampled_from(["version", "cuda_version", "brand"])),
)
@settings(max_examples=campaign_count(60, 5_000))
def test_what_is_answered_without_a_figure_is_the_answer_with_it(
    alternatives: list[list[Condition]], driver: GpuDriver, brand: str, hidden: set[str]
) -> None:
    requirement = text_of(alternatives)
    version = None if "version" in hidden else driver.version
    part_known = GpuDriver(version, None if "cuda_version" in hidden else driver.cuda_version)
    answer = is_fulfilled(requirement, part_known, None if "brand" in hidden else brand)
    assert answer in (None, is_fulfilled(requirement, driver, brand))


@given(alternatives=ALTERNATIVES, driver=DRIVERS, brand=st.sampled_from(BRANDS), unknown=UNKNOWN_CONDITIONS)
@settings(max_examples=campaign_count(60, 5_000))
def test_what_cannot_be_judged_refuses_nobody_as_an_alternative_and_admits_nobody_beside_another(
    alternatives: list[list[Condition]], driver: GpuDriver, brand: str, unknown: str
) -> None:
    requirement = text_of(alternatives)
    known = is_fulfilled(requirement, driver, brand)
    assert is_fulfilled(f"{requirement} {unknown}", driver, brand) is (True if known else None)
    together = " ".join(f"{term},{unknown}" for term in requirement.split(" "))
    assert is_fulfilled(together, driver, brand) is (None if known else False)


@given(
    alternatives=ALTERNATIVES,
    driver=DRIVERS,
    brands=st.sets(st.sampled_from(BRANDS), min_size=1).map(lambda names: tuple(sorted(names))),
)
@settings(max_examples=campaign_count(60, 5_000))
def test_an_image_is_refused_where_no_kind_of_gpu_may_have_it_and_in_words_that_name_both(
    alternatives: list[list[Condition]], driver: GpuDriver, brands: tuple[str, ...]
) -> None:
    requirement = text_of(alternatives)
    image_env = (f"NVIDIA_REQUIRE_CUDA={requirement}",)
    problem = find_driver_problem("i:1", image_env, {}, replace(driver, brands=brands))
    assert (problem is None) is any(is_fulfilled(requirement, driver, brand) for brand in brands)
    if problem is not None:
        assert problem.startswith(f"image i:1 asks for {requirement.split()[0]}, and this host's NVIDIA driver is ")
        assert f"CUDA up to {driver.cuda_version}: update the driver" in problem
    assert find_driver_problem("i:1", image_env, {"NVIDIA_DISABLE_REQUIRE": "1"}, driver) is None


TEXTS = st.text(st.sampled_from("cuda driver,<>=!.0129brnté\n\0")) | st.text()


@given(requirement=TEXTS, version=TEXTS, driver=st.builds(GpuDriver, st.none() | TEXTS, st.none() | TEXTS))
@settings(max_examples=campaign_count(60, 5_000))
def test_no_text_breaks_it(requirement: str, version: str, driver: GpuDriver) -> None:
    image_env = (f"NVIDIA_REQUIRE_CUDA={requirement}", f"CUDA_VERSION={version}", version)
    assert all(each.strip() for each in list_requirements(image_env, {}))
    assert find_driver_problem("i:1", image_env, {}, driver) is None or driver != GpuDriver()

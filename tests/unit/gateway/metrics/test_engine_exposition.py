"""Engines' metrics on one page: labelled, under the newest names, and none spoils another's."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families

from gateway.metrics.engine_exposition import RENAMED, EnginePage, merge_pages, rename

DOCS = Path(__file__).parents[4] / "docs" / "metrics.md"
LLAMA = """# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed.
# TYPE llamacpp:prompt_tokens_total counter
llamacpp:prompt_tokens_total 12
# HELP llamacpp:requests_processing Number of requests processing.
# TYPE llamacpp:requests_processing gauge
llamacpp:requests_processing 1
"""
OLD_VLLM = """# HELP vllm:gpu_cache_usage_perc GPU KV-cache usage.
# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{model_name="a"} 0.25
# TYPE vllm:gpu_prefix_cache_queries_total counter
vllm:gpu_prefix_cache_queries_total{model_name="a"} 20.0
# TYPE vllm:gpu_prefix_cache_queries_created gauge
vllm:gpu_prefix_cache_queries_created{model_name="a"} 1.7e9
# TYPE vllm:time_per_output_token_seconds histogram
vllm:time_per_output_token_seconds_bucket{le="0.01",model_name="a"} 3.0
vllm:time_per_output_token_seconds_bucket{le="+Inf",model_name="a"} 4.0
vllm:time_per_output_token_seconds_count{model_name="a"} 4.0
vllm:time_per_output_token_seconds_sum{model_name="a"} 0.5
"""
BOTH_VLLM = """# TYPE vllm:gpu_cache_usage_perc gauge
vllm:gpu_cache_usage_perc{engine="0"} 0.9
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0"} 0.5
"""


def page(text: str | None, model: str = "m", replica: str = "r") -> EnginePage:
    return EnginePage(model, replica, text, 0.25)


def families(*pages: EnginePage) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(merge_pages(pages))}


def samples(*pages: EnginePage) -> Iterator[tuple[str, dict[str, str], float]]:
    for family in families(*pages).values():
        yield from ((each.name, each.labels, each.value) for each in family.samples)


def test_each_sample_says_whose_it_is() -> None:
    found = list(samples(page(LLAMA, "m", "m-0"), page(LLAMA, "n/x", "n-0")))
    for model, replica in (("m", "m-0"), ("n/x", "n-0")):
        labels = {"model": model, "replica": replica}
        assert ("llamacpp:prompt_tokens_total", labels, 12) in found
        assert ("roundhouse_engine_up", labels, 1) in found
        assert ("roundhouse_engine_scrape_seconds", labels, 0.25) in found
    text = merge_pages([page(LLAMA, "m", "m-0"), page(LLAMA, "n", "n-0")])
    assert text.count("# TYPE llamacpp:requests_processing gauge") == 1


def test_our_own_metrics_of_engines_are_documented() -> None:
    rows = re.findall(
        r"^\| `(roundhouse_engine_\w+)` \| (\w+) \| ([\w, ]+) \| (.+) \|$", DOCS.read_text(), re.MULTILINE
    )
    served = {
        (name, family.type, ", ".join(sorted(family.samples[0].labels)), family.documentation)
        for name, family in families(page(None)).items()
    }
    assert set(rows) == served


def test_old_names_are_in_the_docs() -> None:
    told = set(re.findall(r"^\| `(vllm:\w+)` \| `(vllm:\w+)` \|$", DOCS.read_text(), re.MULTILINE))
    assert {(old.removesuffix("_total"), new.removesuffix("_total")) for old, new in told} == set(RENAMED.items())


def test_an_engine_that_could_not_be_read_costs_its_own_part() -> None:
    found = families(page(LLAMA, "m", "m-0"), page(None, "n", "n-0"))
    up = {each.labels["replica"]: each.value for each in found["roundhouse_engine_up"].samples}
    assert up == {"m-0": 1, "n-0": 0}
    assert {each.labels["replica"] for each in found["llamacpp:prompt_tokens"].samples} == {"m-0"}


def test_old_names_of_vllm_are_served_as_the_new_ones() -> None:
    found = families(page(OLD_VLLM))
    assert "gpu" not in "".join(found)
    assert found["vllm:kv_cache_usage_perc"].samples[0].value == 0.25
    assert found["vllm:kv_cache_usage_perc"].type == "gauge"
    assert found["vllm:prefix_cache_queries"].type == "counter"
    histogram = found["vllm:inter_token_latency_seconds"]
    assert histogram.type == "histogram"
    assert {each.name for each in histogram.samples} == {
        f"vllm:inter_token_latency_seconds_{part}" for part in ("bucket", "count", "sum")
    }
    assert not any(name.endswith("_created") for name, _, _ in samples(page(OLD_VLLM)))


def test_the_new_name_counts_where_an_engine_serves_both() -> None:
    assert [each.value for each in families(page(BOTH_VLLM))["vllm:kv_cache_usage_perc"].samples] == [0.5]


def test_versions_side_by_side_are_one_family() -> None:
    found = families(page(OLD_VLLM, "m", "old"), page(BOTH_VLLM, "m", "new"))["vllm:kv_cache_usage_perc"]
    assert {each.labels["replica"]: each.value for each in found.samples} == {"old": 0.25, "new": 0.5}


@pytest.mark.parametrize(("old", "new"), RENAMED.items())
def test_names_are_mapped_with_each_suffix(old: str, new: str) -> None:
    assert rename(old) == new
    assert [rename(old + suffix) for suffix in ("_total", "_bucket", "_sum", "_count")] == [
        new + suffix for suffix in ("_total", "_bucket", "_sum", "_count")
    ]
    assert rename(new) == new
    assert new not in RENAMED, "a name is changed once, not in steps"


@pytest.mark.parametrize(
    "line",
    [
        "<html>no metrics</html>",
        "llamacpp:bad",
        "llamacpp:bad x",
        'llamacpp:bad{label="open} 1',
        'llamacpp:bad{label="a"} 1 2 3',
        "llamacpp:bad{} 1e",
        "# TYPE llamacpp:bad nonsense",
        "# EOF",
        "process_open_fds 12",
        "llamacpp:bad 1\x00",
        "",
    ],
)
def test_a_line_that_is_no_sample_spoils_nothing(line: str) -> None:
    found = families(page(line + "\n" + LLAMA), page(LLAMA, "n", "n-0"))
    assert len(found["llamacpp:prompt_tokens"].samples) == 2
    assert not any("bad" in name or name.startswith("process") for name in found)


def test_labels_of_the_engine_stay_and_never_take_the_place_of_ours() -> None:
    text = 'vllm:x{model="theirs",replica="7",model_name="a,model=b \\" c",} 1.5e3 1700000000\nllamacpp:y NaN\n'
    found = {name: labels for name, labels, _ in samples(page(text))}
    assert found["vllm:x"] == {
        "model": "m",
        "replica": "r",
        "exported_model": "theirs",
        "exported_replica": "7",
        "model_name": 'a,model=b " c',
    }
    assert "llamacpp:y" in found


def test_names_of_models_are_escaped() -> None:
    [found] = families(page(None, 'a"b\\c\nd', "r"))["roundhouse_engine_up"].samples
    assert found.labels["model"] == 'a"b\\c\nd'


def test_what_prometheus_client_writes_is_read_whole() -> None:
    registry = CollectorRegistry()
    Counter("vllm:requests", "Requests.", ("reason",), registry=registry).labels("stop").inc(3)
    Gauge("vllm:running", "Running.", registry=registry).set(-0.5)
    Histogram("vllm:latency_seconds", "Latency.", ("engine",), registry=registry).labels("0").observe(0.2)
    theirs = generate_latest(registry).decode()
    expected = {
        (each.name, each.value, tuple(sorted(each.labels.items())))
        for family in text_string_to_metric_families(theirs)
        for each in family.samples
        if not each.name.endswith("_created")
    }
    ours = {
        (name, value, tuple(sorted(label for label in labels.items() if label[0] not in ("model", "replica"))))
        for name, labels, value in samples(page(theirs))
        if not name.startswith("roundhouse")
    }
    assert ours == expected

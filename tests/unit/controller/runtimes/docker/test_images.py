"""Images of our own, which no registry serves."""

from __future__ import annotations

import pytest

from controller.runtimes.docker.images import build_command, is_built_here


@pytest.mark.parametrize(
    ("image", "command"),
    [
        ("roundhouse/llama-server:latest", "make images"),
        ("roundhouse/worker:latest", "make images"),
        ("roundhouse/worker-exllamav3:latest", "make images ENGINES=exllamav3"),
        ("roundhouse/worker-vllm", "make images ENGINES=vllm"),
        ("roundhouse/worker-vllm-old:1", "make images"),
    ],
)
def test_what_builds_an_image_of_ours(image: str, command: str) -> None:
    assert is_built_here(image)
    assert build_command(image) == command

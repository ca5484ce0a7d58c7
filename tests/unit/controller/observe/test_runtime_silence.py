"""When a silent runtime makes the controller unhealthy, and when the controller ends because of it."""

from __future__ import annotations

import pytest

from controller.observe.runtime_silence import UNHEALTHY_AFTER_S, RuntimeSilence, extend_silence


def test_silence_counts_from_the_first_failed_observation() -> None:
    silence = extend_silence(None, is_gone=False, now=100.0)
    silence = extend_silence(silence, is_gone=False, now=100.0 + UNHEALTHY_AFTER_S - 1)
    assert silence == RuntimeSilence(100.0, None)
    assert not silence.is_unhealthy(100.0 + UNHEALTHY_AFTER_S - 1)
    assert silence.is_unhealthy(100.0 + UNHEALTHY_AFTER_S)


def test_a_runtime_that_hangs_does_not_end_the_controller() -> None:
    silence = extend_silence(None, is_gone=False, now=100.0)
    assert not silence.ends_controller(1e9, 30)


@pytest.mark.parametrize(("now", "limit_s", "ends"), [(139.9, 30, False), (140, 30, True), (1e9, 0, False)])
def test_nobody_at_the_socket_ends_it_after_the_limit(now: float, limit_s: float, ends: bool) -> None:
    hanging = extend_silence(None, is_gone=False, now=100.0)
    silence = extend_silence(extend_silence(hanging, is_gone=True, now=110.0), is_gone=True, now=120.0)
    assert silence == RuntimeSilence(100.0, 110.0)
    assert silence.ends_controller(now, limit_s) is ends


def test_somebody_at_the_socket_begins_that_anew() -> None:
    gone = extend_silence(None, is_gone=True, now=100.0)
    assert extend_silence(gone, is_gone=False, now=120.0) == RuntimeSilence(100.0, None)
    again = extend_silence(extend_silence(gone, is_gone=False, now=120.0), is_gone=True, now=130.0)
    assert again == RuntimeSilence(100.0, 130.0)

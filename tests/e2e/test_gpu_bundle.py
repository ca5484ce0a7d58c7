"""`tests/gpu/run --bundle --cpu`: made here, unpacked and run where there is no network, from the bundle alone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import installed_engines
from tests.support.campaign import campaign_name
from tests.support.ci_cache import REPOSITORY
from tests.support.networks import private_lan

pytestmark = [pytest.mark.engines, pytest.mark.slow]
# pytest's own word. It takes minutes, for wheels and engines, and so it is left to `make campaign ARGS=gpu_bundle`.
__test__ = campaign_name() == "gpu_bundle"

PART_MIB = 30
STEPS = ("host.system", "llama.grows", "kill.streams", "speed.llama")


def test_a_host_without_a_network_runs_the_steps_from_the_bundle_alone(folder: Path) -> None:
    installed_engines.needed("binary")
    bundle, other, there = folder / "bundle", folder / "other", folder / "there"
    make = ["tests/gpu/run", "--as-is", "--bundle", str(bundle), "--cpu", "--part-size", str(PART_MIB)]
    own = {"ROUNDHOUSE_PYTHON": sys.executable}
    done = subprocess.run(make, cwd=REPOSITORY, env=os.environ | own, capture_output=True, text=True, check=False)
    if done.returncode and ("No matching distribution" in done.stderr or "HTTPSConnectionPool" in done.stderr):
        pytest.skip("pip finds no wheels: there is no index")
    assert done.returncode == 0, done.stderr[-2000:]
    parts = sorted(bundle.glob("part-*"))
    assert 1 < len(parts) <= 8
    assert max(part.stat().st_size for part in parts) == PART_MIB * 2**20
    other.mkdir()
    shutil.move(parts[1], other)
    with private_lan() as lan:
        offline = [*lan.enter(lan.client), "env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={folder}"]
        base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info[1]}"
        unpack = [*offline, str(base), str(bundle / "unpack.py"), str(there), str(other)]
        done = subprocess.run(unpack, cwd="/", capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        run = [str(there / "run"), "--cpu", "--small", "--folder", str(folder / "results"), "--only", *STEPS]
        done = subprocess.run([*offline, *run], cwd="/", capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = json.loads((folder / "results" / "results.json").read_text())["steps"]
    assert {step: result["status"] for step, result in steps.items()} == dict.fromkeys(STEPS, "passed")

"""What nvidia-smi, nvidia-ctk and the Docker Engine print, as it was seen on real hosts."""

from __future__ import annotations

import json

import pytest

from tests.gpu.tool_output import (
    QUERY_FIELDS,
    docker_facts,
    explain_no_toolkit,
    parse_cdi_list,
    parse_gpu_list,
    parse_gpu_query,
    parse_module_version,
    parse_toolkit_version,
    parse_topology,
    parse_versions,
)

# https://github.com/NVIDIA/nvidia-container-toolkit/issues/1227
FOUR_GPUS = """\
GPU 0: NVIDIA A10 (UUID: GPU-f15ae561-21b1-6003-c768-861fc285203b)
GPU 1: NVIDIA A10 (UUID: GPU-466be1f8-6148-1a27-a450-592604f3df54)
GPU 2: Tesla T4 (UUID: GPU-bf507abe-ec25-2053-5435-1c82511a3ae8)
GPU 3: Tesla T4 (UUID: GPU-a1329f2e-1e73-88f2-4d4b-1ce18debbc6d)
"""
# https://github.com/influxdata/telegraf/issues/5812
WITH_INSTANCES = """\
GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-513536b6-7d19-9063-b049-1e69664bb298)
  MIG 1g.20gb     Device  0: (UUID: MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a)
  MIG 1g.20gb     Device  1: (UUID: MIG-a45882f0-9215-5733-a0c1-49286ab31cb5)
GPU 1: NVIDIA A100-SXM4-80GB (UUID: GPU-d8594bd4-0fc3-8595-e355-7c98138f3b95)
"""
# https://github.com/snowflakedb/ArcticTraining/pull/345, a DGX Spark
UNIFIED_MEMORY_HEAD = """\
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 580.126.09             Driver Version: 580.126.09     CUDA Version: 13.0     |
+-----------------------------------------+------------------------+----------------------+
"""
# https://github.com/NVIDIA/nvidia-container-toolkit/issues/70: under WSL2 the driver is Windows'
WSL2_HEAD = "| NVIDIA-SMI 510.52       Driver Version: 511.79       CUDA Version: 11.6     |"
# https://github.com/noonghunna/club-3090/issues/1229
TWO_ON_ONE_BRIDGE = """\
\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID
GPU0\t X \tPHB\t0-63\t0\t\tN/A
GPU1\tPHB\t X \t0-63\t0\t\tN/A

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
"""
# https://github.com/kubernetes/kubernetes/issues/53497, its first three GPUs, with a network card beside them
WITH_A_NETWORK_CARD = """\
        GPU0    GPU1    GPU2    mlx4_0  CPU Affinity
GPU0     X      PIX     PHB     PHB     0-9,20-29
GPU1    PIX      X      PHB     PHB     0-9,20-29
GPU2    PHB     PHB      X      PHB     0-9,20-29
mlx4_0  PHB     PHB     PHB      X
"""
# `docker info --format '{{json .}}'` of Debian 12's Docker Engine, without a GPU; what matters of it
PLAIN_DOCKER = json.loads(
    '{"ServerVersion":"20.10.24+dfsg1","OperatingSystem":"Debian GNU/Linux 12 (bookworm)","CgroupDriver":"cgroupfs",'
    '"CgroupVersion":"1","Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"io.containerd.runtime.v1.linux":'
    '{"path":"runc"},"runc":{"path":"runc"}},"DefaultRuntime":"runc","SecurityOptions":'
    '["name=seccomp,profile=default"],"CDISpecDirs":null}'
)
# The same fields as API 1.50 and later has them (docs.docker.com, schemas SystemInfo and DeviceInfo), put together.
CDI_DOCKER = json.loads(
    '{"ServerVersion":"29.4.0","OperatingSystem":"Ubuntu 24.04.3 LTS","CgroupDriver":"systemd","CgroupVersion":"2",'
    '"Runtimes":{"io.containerd.runc.v2":{"path":"runc"},"runc":{"path":"runc"}},"DefaultRuntime":"runc",'
    '"SecurityOptions":["name=seccomp,profile=builtin","name=rootless","name=cgroupns"],'
    '"CDISpecDirs":["/etc/cdi","/var/run/cdi"],'
    '"DiscoveredDevices":[{"Source":"cdi","ID":"nvidia.com/gpu=0"},{"Source":"cdi","ID":"nvidia.com/gpu=all"}]}'
)


def test_gpus_and_their_instances() -> None:
    gpus = parse_gpu_list(FOUR_GPUS)
    assert [(gpu.index, gpu.name) for gpu in gpus] == [
        (0, "NVIDIA A10"),
        (1, "NVIDIA A10"),
        (2, "Tesla T4"),
        (3, "Tesla T4"),
    ]
    assert gpus[3].usable_uuids == ("GPU-a1329f2e-1e73-88f2-4d4b-1ce18debbc6d",)
    split, whole = parse_gpu_list(WITH_INSTANCES)
    assert split.instances["MIG-ce861fb0-a248-58ce-a9a8-f9adbc22a66a"] == "1g.20gb"
    assert len(split.usable_uuids) == 2
    assert whole.usable_uuids == (whole.uuid,)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "No devices were found\n",
        # In a container, after a daemon-reload: the thread of FOUR_GPUS.
        "Failed to initialize NVML: Unknown Error\n",
        # https://github.com/NVIDIA/open-gpu-kernel-modules/issues/387
        "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n",
    ],
)
def test_sentences_in_place_of_gpus_are_no_gpus(text: str) -> None:
    assert parse_gpu_list(text) == []
    assert parse_gpu_query(text) == []
    assert parse_topology(text) == {}


def test_a_value_that_the_driver_does_not_tell_is_none() -> None:
    # https://github.com/XuehaiPan/nvitop/pull/208, a DGX Spark: no memory of its own
    fields = ("memory.total", "memory.used", "memory.free", "utilization.gpu", "power.draw", "temperature.gpu")
    [gpu] = parse_gpu_query("[N/A], [N/A], [N/A], 0 %, 11.17 W, 35\n", fields)
    assert gpu == dict(zip(fields, (None, None, None, "0 %", "11.17 W", "35"), strict=True))


def test_each_gpu_of_a_query() -> None:
    # Put together: the figures are those that nvidia-smi shows of an H100.
    line = (
        "0, GPU-5e375e7e-b41f-155b-dcdc-534524c356fc, NVIDIA H100 80GB HBM3, 00000000:04:00.0, 81559, 1, "
        "580.159.04, 9.0, Disabled, Enabled, Default\n"
    )
    [gpu] = parse_gpu_query(line)
    assert list(gpu) == list(QUERY_FIELDS)
    assert (gpu["memory.total"], gpu["compute_cap"], gpu["mig.mode.current"]) == ("81559", "9.0", "Disabled")


def test_versions() -> None:
    assert parse_versions(UNIFIED_MEMORY_HEAD) == {"driver": "580.126.09", "cuda": "13.0"}
    assert parse_versions(WSL2_HEAD) == {"driver": "511.79", "cuda": "11.6"}
    assert parse_versions("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == {
        "driver": None,
        "cuda": None,
    }


def test_the_kernels_module() -> None:
    # https://github.com/nix-community/nixGL/issues/186 and issues/139; the closed one by open-gpu-kernel-modules#171.
    lines = (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  565.57.01  Release Build  (dvs-builder@U16-A24-9-2)",
        "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  35.3.1  Release Build  (buildbrain@mobile-u64-6289)",
        "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023",
        "GCC version:  gcc version 13.3.0 (Ubuntu 13.3.0-6ubuntu2~24.04)",
    )
    assert [parse_module_version(line) for line in lines] == ["565.57.01", "35.3.1", "535.54.03", None]


def test_topology() -> None:
    assert parse_topology(TWO_ON_ONE_BRIDGE) == {"GPU0-GPU1": "PHB"}
    assert parse_topology(WITH_A_NETWORK_CARD) == {"GPU0-GPU1": "PIX", "GPU0-GPU2": "PHB", "GPU1-GPU2": "PHB"}
    # With colours, as to a terminal.
    assert parse_topology("\t\x1b[4mGPU0\tGPU1\x1b[0m\nGPU0\t X \tNV12\nGPU1\tNV12\t X \n") == {"GPU0-GPU1": "NV12"}


def test_toolkit() -> None:
    # Isaac ROS's page on CDI
    text = (
        "INFO[0000] Found 4 CDI devices\nnvidia.com/gpu=0\nnvidia.com/gpu=all\nnvidia.com/pva=0\nnvidia.com/pva=all\n"
    )
    assert parse_cdi_list(text) == ["nvidia.com/gpu=0", "nvidia.com/gpu=all", "nvidia.com/pva=0", "nvidia.com/pva=all"]
    assert parse_cdi_list("INFO[0000] Found 0 CDI devices\n") == []
    version = "NVIDIA Container Toolkit CLI version 1.17.8\ncommit: f202b80a9b9d0db00d9b1d73c0128c8962c55f4d\n"
    assert parse_toolkit_version(version) == "1.17.8"
    assert parse_toolkit_version("command not found") is None


def test_what_docker_can_do() -> None:
    plain, cdi = docker_facts(PLAIN_DOCKER), docker_facts(CDI_DOCKER)
    assert (plain["version"], plain["cgroups"], plain["rootless"]) == ("20.10.24+dfsg1", "1, cgroupfs", False)
    assert (
        explain_no_toolkit(plain)
        == "the Docker Engine knows neither an NVIDIA runtime nor CDI devices of nvidia.com/gpu"
    )
    assert (cdi["cdi_devices"], cdi["rootless"]) == (["nvidia.com/gpu=0", "nvidia.com/gpu=all"], True)
    assert explain_no_toolkit(cdi) is None
    with_runtime = PLAIN_DOCKER | {"Runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}
    assert explain_no_toolkit(docker_facts(with_runtime)) is None

"""Replicas as containers of one Docker daemon. `runtime` implements `Runtime`, `container_spec` builds the body of a
container's creation, `labels` identify this instance's containers, `gpus` reads GPUs through a probe container.
"""

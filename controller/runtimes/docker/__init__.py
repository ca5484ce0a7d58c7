"""Replicas as containers of one Docker daemon. `runtime` implements `Runtime`, `container_spec` builds the body of a
container's creation and has the labels that identify this instance's, `gpus` reads GPUs through a probe container.
"""

"""Replicas as containers of a Docker daemon."""

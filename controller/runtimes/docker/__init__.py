"""The runtime that runs replicas as containers of a Docker Engine."""

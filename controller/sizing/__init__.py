"""Memory in MiB: what replicas are predicted to take, and what they were seen to take."""

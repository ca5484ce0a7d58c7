"""The desired state: files, overrides by operators and demand by requests, resolved to what should run."""

"""The controller: desired state x observed state -> plan -> actions."""

__version__ = "0.1.0"

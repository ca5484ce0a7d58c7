"""The controller: compares what should run with what runs, and starts and stops engines until both agree."""

__version__ = "0.1.0"

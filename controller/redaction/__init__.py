"""Finds the secrets in model definitions, and masks them in texts."""

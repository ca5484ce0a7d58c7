"""Campaigns: tests with counts too large for CI, run in full from a seed, whose figures are committed."""

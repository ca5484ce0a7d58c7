"""Tests of `gateway.page`."""

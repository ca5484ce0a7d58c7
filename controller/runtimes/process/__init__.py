"""Replicas as processes of this host."""

"""Texts of files that requests hold: read in a process of their own, with limits."""

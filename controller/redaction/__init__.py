"""Secrets of definitions and loads. `patterns` tells which fields and values are secret, `redactor` masks them in logs,
errors and answers. Pure.
"""

"""Responses that are stored, and those that are being made and can be asked for."""

"""Stored responses, and responses that are being made and can be read already."""

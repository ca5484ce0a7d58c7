"""What API families share: the protocol `Dialect`, a conversation in no family's form, request parsing, errors,
streams. Pure.
"""

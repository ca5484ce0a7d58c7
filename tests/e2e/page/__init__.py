"""The page, used as a person uses it: a real browser against a running Roundhouse with real engines."""

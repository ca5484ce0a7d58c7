"""The part of a translation to chat completions that all API families share: `dialect` for answers, `token_count` for
counts. Pure.
"""

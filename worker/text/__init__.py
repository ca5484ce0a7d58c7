"""Prompts and answers as text. `prompt_form` renders prompts; `answer_text` and `tool_calls` read answers; `grammars`
constrain them. Pure.
"""

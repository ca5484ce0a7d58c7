"""Prompts and answers as text. `prompt_form` and `chat_template` render prompts; `reasoning`, `stop_strings` and
`tool_calls` read answers; `grammars` constrain them. Pure.
"""

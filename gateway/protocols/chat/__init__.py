"""OpenAI's chat completions, and completions of engines that serve these. `engine_request` adapts a request to the
model's engine. Pure.
"""

"""Engines with a server of their own, `llama_server` and `vllm`, which the worker launches; `child_process` never
outlives it.
"""

"""The worker: one process that serves one replica over OpenAI's routes, with the engine as a library in the same
process. Imports neither the controller nor the gateway.
"""

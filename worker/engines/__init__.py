"""The engines: one module each, named as the engine is on the command line."""

"""The engines, one module each, named as in `python -m worker ENGINE`. Each implements `worker.engine.Engine`."""

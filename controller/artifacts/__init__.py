"""Facts about model files, read from their headers and never from their tensors. `read` opens the files, `gguf`, `hf`
and `ct2` parse their bytes into `facts`, `model_roots` and `locate` resolve the paths of a definition.
"""

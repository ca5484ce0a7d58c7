"""Facts about model files, read from their headers and never from their tensors. `read` finds and opens the files,
`heads` parses their bytes into facts, `model_roots` resolves paths.
"""

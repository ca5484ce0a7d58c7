"""What a model's files say of the model: read from their headers, never from their tensors.

`read.py` alone touches files; the others turn bytes and values into facts.
"""

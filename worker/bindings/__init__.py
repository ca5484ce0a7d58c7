"""Calls into single engines' libraries (ExLlamaV3, LiteRT-LM, llama-cpp-python): what is theirs alone and not part of
the engine interface.
"""

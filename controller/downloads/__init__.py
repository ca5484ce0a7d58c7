"""Downloads of models, as the controller sees them: whether they are allowed, what they take, and how far they are. The
program that makes them, transfers, alone writes the models folder.
"""

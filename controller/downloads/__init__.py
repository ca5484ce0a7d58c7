"""Downloads of models, as the controller sees them: whether they are allowed, what they take, and how far they are. The
program `transfers` makes them, and it alone writes the models folder.
"""

"""Downloads of models, as the controller sees them: whether they are allowed, what they take, and how far they are.

Also declarations made from what lies in the models folders. The program that downloads, transfers, alone writes there.
"""

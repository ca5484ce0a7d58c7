"""`roundhouse pull`: download a model, watch it, and declare it."""

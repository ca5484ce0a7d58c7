"""Files of a declared folder, and texts of pages: work that a process of its own does, which may fail or hang alone.

The modules that run in that process import nothing but the standard library, so that it starts quickly.
"""

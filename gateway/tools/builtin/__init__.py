"""The tools that Roundhouse has itself, one module each, and the table of them."""

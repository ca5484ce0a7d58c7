"""The tools that Roundhouse has itself, and the table of them."""

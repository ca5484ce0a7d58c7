"""Downloads from the order to the files in their places, and the removal of those files."""

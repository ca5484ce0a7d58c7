"""One module per family of file formats: what it reads becomes text with Markdown's structure. `office` opens the ZIP
files that hold XML.
"""

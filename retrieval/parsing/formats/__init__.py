"""One module per file format: what it reads becomes text with Markdown's structure. `text_builder` collects the text
within its limits; `office_package` opens the ZIP files that hold XML."""

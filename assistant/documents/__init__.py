"""Texts of files in requests, such as PDFs. `reader` starts one process per file, `extract_text`, within limits of
time, memory and size.
"""

"""Streams that outlive their client: kept in memory and in a file, and read again from any byte. `registry` holds the
streams of all tenants and their rules, `ring` the bytes of one, `stream_folder` the files, `recovery` reads those of an
earlier process, `replay` serves readers, `client_feed` the client that asked.
"""

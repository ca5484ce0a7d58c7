"""The bytes of files: ranges in parallel into a partial file, a journal of what is there, and the hash of it all."""

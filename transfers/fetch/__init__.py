"""The bytes of files: ranges in parallel into a partial file, with a journal of what is there, and the hash of it all."""

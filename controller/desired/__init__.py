"""The desired state. `source` puts it together from `file_source` (desired-state files), operators' loads and
unloads, and requests. `resolve` computes the result, `differences` compares two declared states and two versions of
Roundhouse.
"""

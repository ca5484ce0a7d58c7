"""`roundhouse up`: the supervised processes, their record, and what the operator is told."""

"""Reports for operators: drift, dry runs, views of rounds, metrics."""

"""What operators can ask for beside the rows of models: drift, dry runs, rounds, metrics."""

"""Memory of replicas in MiB: predicted from model files, and observed while they run."""

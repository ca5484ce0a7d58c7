"""The runtime that runs replicas as processes of this host."""

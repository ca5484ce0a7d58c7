"""What is seen from outside of engines, remote models and gateways."""

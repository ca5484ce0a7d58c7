"""What is seen from outside of engines and gateways, and what gateways say of remote models."""

"""The API families that requests and answers are written in: how each asks, ends, counts and fails."""

"""Places in the models folder: where files go, how they get there whole, and the records of what was put there."""

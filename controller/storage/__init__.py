"""The state folder: `state_dir` locks it and stores what must outlive the controller."""

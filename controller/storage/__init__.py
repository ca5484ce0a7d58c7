"""The state folder of a controller, and writing files so that a crash leaves them whole."""

"""From one API family to another. Pure: each family is a module of functions over the values of `conversation`."""

"""Code that several programs (controller, gateway, worker, command line) share. It imports none of them."""

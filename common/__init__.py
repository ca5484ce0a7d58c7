"""What the controller, the gateway and other programs share and none of them owns. Imports none of them."""

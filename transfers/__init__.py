"""The program that downloads models: the only writer of the models folder. It takes orders from the controller, and
is the only part of Roundhouse that connects to addresses which somebody else names."""

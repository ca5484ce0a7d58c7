"""What to do: the plan, and the rules that it is made by. Pure: `now` is an argument."""

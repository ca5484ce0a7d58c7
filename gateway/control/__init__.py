"""The link to the controller: routing tables down, reports up."""

"""From a plan to the text of its program."""

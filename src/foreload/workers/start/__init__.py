"""Start of worker processes: whether it is possible, and the template that they are forked from."""

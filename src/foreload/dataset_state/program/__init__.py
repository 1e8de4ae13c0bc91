"""A program's state beyond a dataset, which processes that are not forked lack."""

"""Epochs by worker processes that the loader has chosen: nothing shows that they load ahead of the loop."""

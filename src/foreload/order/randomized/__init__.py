"""The order of torch's ``RandomSampler``, drawn as torch draws it, but no further than it is needed."""

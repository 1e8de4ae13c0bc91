"""The cache of samples: the plan of what it keeps, and the memory and files that it keeps samples in."""

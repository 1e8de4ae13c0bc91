"""foreload beside other loaders, on the same files."""

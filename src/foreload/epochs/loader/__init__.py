"""The base classes of ``DataLoader``: its options, the order, what epochs are given, and its state."""

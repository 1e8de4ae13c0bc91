"""The values that a script sets between epochs in a dataset, its classes and modules."""

"""foreload beside stock torch, on the user's own machine and data."""

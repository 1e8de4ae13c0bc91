"""The ``foreload`` command line."""

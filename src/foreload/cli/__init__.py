"""The ``foreload`` command."""

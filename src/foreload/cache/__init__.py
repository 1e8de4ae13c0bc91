"""Which samples stay in memory, and where they are kept."""

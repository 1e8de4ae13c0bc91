"""Ready-made loaders and the configuration API."""

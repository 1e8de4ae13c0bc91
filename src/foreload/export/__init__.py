"""Exporters: what loaders recorded, in the formats of other tools."""

"""Accelerators that only sleep, fed by loaders: how many of them a core keeps busy, as MLPerf Storage counts."""

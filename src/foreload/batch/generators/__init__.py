"""The random generators that samples draw from: keyed for each sample, or a worker's or stream's own."""

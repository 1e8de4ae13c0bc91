"""What the samples are."""

"""The making of one batch: loading its samples, collating them, and the memory that it lies in."""

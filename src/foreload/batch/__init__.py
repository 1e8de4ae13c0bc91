"""How one batch is made: loading its samples, collating them, and the memory they lie in."""

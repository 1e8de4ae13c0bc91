"""Orders that a sampler of the user's draws, asked as torch asks it."""

"""The state of datasets: what they hold, which of it is open, and what changes of it."""

"""Recording of what happens while data is loaded: spans, counters, memory, cores."""

"""What happens while data is loaded: memory, processors, throughput."""

"""What holds a loop back, in words, with advice."""

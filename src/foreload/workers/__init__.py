"""Worker threads and worker processes, and the choice between them."""

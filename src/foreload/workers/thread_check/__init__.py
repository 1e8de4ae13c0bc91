"""The check whether threads may share a dataset."""

"""Folders and lists of image files."""

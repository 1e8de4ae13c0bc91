"""Measuring inside the processes of a profiled script, which otherwise run unchanged.

This package is loaded before the script, under another name and without ``foreload``, and needs the standard
library only: the script may still change the environment before it imports torch and NumPy.
"""

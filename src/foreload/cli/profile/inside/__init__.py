"""What runs inside a profiled script's processes: it measures, and otherwise changes nothing.

It is loaded before the script, under a name of its own and without the ``foreload`` package, and needs the
standard library only: a script may still decide what torch and NumPy find in the environment when it imports them.
"""

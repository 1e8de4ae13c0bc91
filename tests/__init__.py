"""Tests, most of which have datasets that cannot be pickled, as stock torch allows where workers are forked."""

import multiprocessing
import multiprocessing.context
import sys

# Python 3.14 has another default, which tests of it choose. This one, too, nobody is seen to have chosen.
if sys.platform == "linux" and sys.version_info >= (3, 14):
    multiprocessing.context._default_context._default_context = multiprocessing.get_context("fork")

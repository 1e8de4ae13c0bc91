"""DALI pipelines under the order, resume and report of foreload's ``DataLoader``; see docs/gpu.md.

Importing this does not import DALI.
"""

from foreload.dali.loader import DALILoader

__all__ = ["DALILoader"]

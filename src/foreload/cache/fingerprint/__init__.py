"""Fingerprints by which a dataset is recognised, and stamps by which its files are."""

from foreload.cache.fingerprint.dataset import content_hash, fingerprint, fingerprint_of, fingerprint_with
from foreload.cache.fingerprint.named_files import check_stamp, stamp

__all__ = ["check_stamp", "content_hash", "fingerprint", "fingerprint_of", "fingerprint_with", "stamp"]

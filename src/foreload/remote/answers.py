"""The meaning of a storage library's answers and errors."""

from __future__ import annotations

import re
from typing import Any

from obstore import exceptions

from foreload.remote.url import without_secrets

__all__ = ["FINAL", "Changed", "check_answer", "describe", "status_of", "tag_of"]

# Failures that another try would only repeat.
FINAL = ("missing", "forbidden", "short", "changed", "untrusted", "refused")
STATUS = re.compile(r"non-2xx status code: (\d{3})")
KINDS = {401: "forbidden", 403: "forbidden", 404: "missing", 407: "forbidden", 410: "missing", 412: "changed"}
KINDS |= {416: "short", 501: "refused", 505: "refused"} | dict.fromkeys((400, 408, 425, 429), "other")
REFUSED = re.compile(r"Received redirect|Range request not supported|following redirect|BadScheme")
# What only the library's longer messages tell.
CAUSES = re.compile(
    r"dns error|Connection refused|Connection reset|Network is unreachable|InvalidCertificate\(\s*\w+|"
    r"TooManyRedirects|BadScheme|TimedOut|IncompleteMessage|UnexpectedEof"
)
NOBODY = "169.254.169.254"  # the address at which a machine in a cloud is given its keys


class Changed(Exception):
    """The file is another one than the one that was opened."""


def tag_of(found: Any) -> str:
    """Return a file's ETag if that is strong, otherwise all that may tell versions apart; or nothing."""
    tag: str = found.get("e_tag") or ""
    if tag and not tag.startswith("W/"):
        return tag
    # The library takes the beginning of time where a server does not give it.
    modified = str(found["last_modified"]) if found["last_modified"].timestamp() else ""
    return f"{tag} {modified}".strip()


def check_answer(url: str, found: Any, version: list[Any] | None) -> None:
    """Raise if an answer is not of this version of a file, or not of its bytes as they are."""
    encoding = found.attributes.get("Content-Encoding", "identity")
    if url.startswith("http") and encoding != "identity":
        raise ValueError(f"the server sends it encoded ({encoding}), so that ranges are not those of the file")
    if version is None:
        return
    size, tag = version
    if found.meta["size"] != size:
        raise Changed(f"it had {size:,} bytes, now {found.meta['size']:,}")
    if tag and tag_of(found.meta) != tag:
        raise Changed(f"it was {tag}, now it is {tag_of(found.meta) or 'without a tag'}")


def status_of(error: BaseException) -> int:
    """Return the status of the answer that is an error; 0 if there was none."""
    status = STATUS.search(str(error))
    return 0 if status is None else int(status[1])


def describe(error: BaseException) -> tuple[str, str]:
    """Return the kind of a failure, and the library's message without what may be secret."""
    kinds = {
        "missing": (FileNotFoundError, exceptions.NotFoundError),
        "forbidden": (PermissionError, exceptions.PermissionDeniedError, exceptions.UnauthenticatedError),
        "short": (EOFError,),
        "changed": (Changed, exceptions.PreconditionError),
        "refused": (ValueError, TypeError, exceptions.NotSupportedError, exceptions.NotModifiedError),
    }
    whole = str(error).strip() or repr(error)
    text = without_secrets(whole.splitlines()[0])[:300]
    cause = CAUSES.search(whole)
    if cause is not None and cause[0] not in text:
        named = " ".join(re.findall(r"[\w ]+", cause[0]))
        text += f" ({named})".replace("BadScheme", "a redirect to what is not a web address")
    if NOBODY in text:
        return "forbidden", text
    if "InvalidCertificate" in text:
        return "untrusted", text
    if status := status_of(error):
        return KINDS.get(status, "refused" if status < 500 else "other"), text
    kind = next((name for name, classes in kinds.items() if isinstance(error, classes)), "other")
    return ("refused" if kind == "other" and REFUSED.search(text) else kind), text

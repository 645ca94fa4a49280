"""Keep secrets out of what people read: URLs' passwords and queries, keys, tokens, and the values of options."""

import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

_WORDS = r"secret|token|passw|signature|credential|authorization|api[-_]?key|access[-_]?key|account[-_]?key|sas\b"
_KEY = re.compile(rf"(?i)^key$|{_WORDS}|connection[-_]?string|^auth|cookie")
_VALUE = r"\"[^\"]*\"|'[^']*'|(?:(?:basic|bearer)\s+)?[^\s,;&<>)}\]]+"
_PAIR = re.compile(rf"(?i)([\w-]*(?:{_WORDS})[\w-]*[\"']?\s*[:=]\s*)({_VALUE})")
_SCHEME = re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}")
_AWS_KEY = re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b")
_XML = re.compile(r"(?is)<(\w*(?:key|sign|token|canonical)\w*)>.*?</\1>")
_LEAST = 4
"""Values of options that are shorter say nothing, and stand in many words."""


def redact(text: str) -> str:
    """Return a path or URL without what may be secret in it: user and password, and the query."""
    text = re.sub(r"(\w://)[^/@\s]*@", r"\1***@", text)
    return re.sub(r"\?\S*=\S*", "?***", text)


def without_secrets(url: str) -> str:
    """Return a URL that can be opened by whoever has the right, and holds none: without user, password and query."""
    return re.sub(r"\?\S*=\S*", "", re.sub(r"(\w://)[^/@\s]*@", r"\1", url))


def redact_message(text: str, secrets: Iterable[str] = ()) -> str:
    """Return the text of somebody else's error without what may be secret in it.

    Parameters
    ----------
    text
        The text.
    secrets
        Values that must not stand in it, as :func:`secrets_in` finds them in options.
    """
    for secret in secrets:
        for form in {secret, quote(secret, safe=""), quote(secret)}:
            text = text.replace(form, "***")
    text = _XML.sub(r"<\1>***</\1>", redact(text))
    return _AWS_KEY.sub("***", _SCHEME.sub(r"\1 ***", _PAIR.sub(r"\1***", text)))


def secrets_in(options: Any, named: bool = False) -> list[str]:
    """Return the values of options that are secret by their names, the longest first.

    Parameters
    ----------
    options
        A file system's options: a mapping, or what stands in one.
    named
        Whether the name above says already that it is secret.
    """
    found: list[str] = []
    if isinstance(options, Mapping):
        for name, value in options.items():
            found += secrets_in(value, named or bool(_KEY.search(str(name))))
    elif isinstance(options, list | tuple | set):
        for value in options:
            found += secrets_in(value, named)
    elif named and isinstance(options, str) and len(options) >= _LEAST:
        found.append(options)
    return sorted(set(found), key=len, reverse=True)

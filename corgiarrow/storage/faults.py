"""What a file system's error means, and how long to try again."""

import errno
import logging
import sys
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any, TypeVar

import tenacity

from corgiarrow.errors import AccessDeniedError, CorgiArrowError, NoFilesError, StorageError
from corgiarrow.storage.redaction import redact_message

LOG = logging.getLogger("corgiarrow")

DEFAULT_TIMEOUT_S = 300.0
"""Seconds in which what is asked of a storage must have come, all tries together."""

TRY_PART = 1 / 20
"""Part of that time after which a first try is broken off; each further one may take twice as long."""

ATTEMPTS = 20
FIRST_ATTEMPTS = 4
"""Tries of the first contact: whoever mistyped an address learns it soon."""
_WAIT = tenacity.wait_random_exponential(multiplier=0.1, max=20)

_FOREIGN = {
    "aiohttp": ("ClientError",),
    "azure.core.exceptions": ("AzureError",),
    "botocore.exceptions": ("BotoCoreError", "ClientError", "HTTPClientError"),
    "gcsfs.retry": ("HttpError",),
    "google.auth.exceptions": ("GoogleAuthError",),
    "httpx": ("HTTPError",),
    "obstore.exceptions": ("BaseError",),
}
"""Errors of drivers that are no OSError, by module; only of modules that are imported."""

_PASSING_NUMBERS = {
    getattr(errno, name)
    for name in (
        *("EAGAIN", "EBUSY", "ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EHOSTUNREACH", "EINTR", "EIO", "ENETDOWN"),
        *("ENETRESET", "ENETUNREACH", "EPIPE", "EREMOTEIO", "ESTALE", "ETIMEDOUT"),
    )
    if hasattr(errno, name)
}
_PASSING_STATUSES = {408, 425, 429}
_PASSING_CODES = {"IncompleteBody", "InternalError", "RequestTimeout", "ServiceUnavailable", "SlowDown", "Throttling"}
_EXPIRED_CODES = {"ExpiredToken", "ExpiredTokenException", "InvalidToken", "RequestExpired", "TokenRefreshRequired"}
_PASSING_NAMES = {
    *("ConnectionClosedError", "ConnectTimeoutError", "EndpointConnectionError", "GenericError", "HTTPClientError"),
}
_SPOILT_NAMES = {"ClientPayloadError", "FlexibleChecksumError", "IncompleteReadError", "ResponseStreamingError"}
"""Errors of bodies that come cut or wrong; aiohttp's has a cause with status 400, which no server has said."""
_MISSING_NAMES = {"NotFoundError", "ResourceNotFoundError"}
_DENIED_NAMES = {
    *("NoCredentialsError", "PartialCredentialsError", "PermissionDeniedError", "UnauthenticatedError"),
    *("ClientAuthenticationError", "CredentialRetrievalError", "TokenRetrievalError", "DefaultCredentialsError"),
}

T = TypeVar("T")


class Fault(Enum):
    """Kinds of errors of a file system."""

    PASSES = "may be gone at the next try"
    EXPIRED = "credentials were good once"
    DENIED = "refused"
    MISSING = "is not there"
    CHANGED = "is another one than it was"
    LASTS = "will be the same at the next try"


class ShortReadError(OSError):
    """Fewer or more bytes came than were asked for."""


def kinds_of_faults() -> tuple[type[BaseException], ...]:
    """Return the types of errors that file systems raise."""
    found: list[type[BaseException]] = [OSError, EOFError]
    for module, names in _FOREIGN.items():
        if module in sys.modules:
            found += [getattr(sys.modules[module], name) for name in names if hasattr(sys.modules[module], name)]
    return tuple(found)


def fault_of(error: BaseException) -> Fault:
    """Say what an error of one of :func:`kinds_of_faults` means."""
    error = _meant(error)
    status, code = _answer(error)
    kinds = {kind.__name__ for kind in type(error).__mro__}
    text = str(error).lower()
    if code in _EXPIRED_CODES or ("expired" in text and ("token" in text or "credential" in text)):
        return Fault.EXPIRED
    if isinstance(error, ShortReadError) or kinds & _SPOILT_NAMES or code in _PASSING_CODES:
        return Fault.PASSES
    if status in (401, 403) or isinstance(error, PermissionError) or kinds & _DENIED_NAMES:
        return Fault.DENIED
    if status in (404, 410) or isinstance(error, FileNotFoundError) or kinds & _MISSING_NAMES:
        return Fault.MISSING
    if status in (412, 416) or "PreconditionError" in kinds:
        return Fault.CHANGED
    if status is not None:
        return Fault.PASSES if status >= 500 or status in _PASSING_STATUSES else Fault.LASTS
    if isinstance(error, IsADirectoryError | NotADirectoryError):
        return Fault.LASTS
    if isinstance(error, TimeoutError | ConnectionError | EOFError) or kinds & _PASSING_NAMES:
        return Fault.PASSES
    if isinstance(error, OSError):
        # Without a number it is a driver's own, which says nothing of its kind.
        return Fault.PASSES if error.errno is None or error.errno in _PASSING_NUMBERS else Fault.LASTS
    return Fault.PASSES if kinds & {"ClientError", "AzureError", "HTTPError", "HttpError"} else Fault.LASTS


def _meant(error: BaseException) -> BaseException:
    """Return the error that tells more: fsspec's HTTP takes every refusal for a missing file."""
    cause = error.__cause__
    return cause if isinstance(error, FileNotFoundError) and isinstance(cause, kinds_of_faults()) else error


def _answer(error: BaseException) -> tuple[int | None, str]:
    """Return the HTTP status and the service's code of an error, as far as it or its cause holds them."""
    for found in (error, error.__cause__):
        answer = getattr(found, "response", None)
        if isinstance(answer, dict):  # botocore's
            status = answer.get("ResponseMetadata", {}).get("HTTPStatusCode")
            return status, str(answer.get("Error", {}).get("Code", ""))
        for holder, name in ((found, "status"), (found, "status_code"), (answer, "status_code"), (found, "code")):
            status = getattr(holder, name, None)
            if isinstance(status, int) and 100 <= status < 600:
                return status, str(getattr(found, "error_code", "") or "")
    return None, ""


def as_ours(error: BaseException, what: str, secrets: Iterable[str] = (), tries: str = "") -> CorgiArrowError:
    """Return the error to raise for a file system's: it names its type, and holds no secret.

    Parameters
    ----------
    error
        One of :func:`kinds_of_faults`.
    what
        Name of what was asked for.
    secrets
        Values that must not stand in the text.
    tries
        How often and how long it was tried.
    """
    fault, error = fault_of(error), _meant(error)
    said = redact_message(str(error), secrets)  # Nothing, where a try was broken off.
    text = f"{what}: {tries}{type(error).__name__}" + (f": {said}" if said else "")
    if fault is Fault.MISSING:
        return NoFilesError(text)
    if fault in (Fault.DENIED, Fault.EXPIRED):
        return AccessDeniedError(f"{text} (check the credentials in storage_options or the environment)")
    return StorageError(text)


class Tries:
    """Tries of one thing, bounded in number and time.

    Parameters
    ----------
    what
        Name of what is asked for.
    timeout_s
        Seconds that all tries together may take.
    renew
        Learns that credentials were refused, and says whether another try may help; called once at most.
    secrets
        Values that must not stand in an error's text.
    count
        Called for each fault that passes.
    attempts
        Tries, at most.
    """

    def __init__(
        self,
        what: str,
        timeout_s: float,
        renew: Callable[[Fault], bool] = lambda fault: False,
        secrets: Sequence[str] = (),
        count: Callable[[], None] = lambda: None,
        attempts: int = ATTEMPTS,
    ):
        self._what = what
        self._attempts = attempts
        self._timeout_s = timeout_s
        self._renew = renew
        self._secrets = secrets
        self._count = count
        self._renewed = False
        self._kinds: dict[str, None] = {}
        """Types of the errors so far, in the order in which they came."""
        self._options: dict[str, Any] = {
            "retry": tenacity.retry_if_exception(self._goes_on),
            "stop": tenacity.stop_after_attempt(attempts) | tenacity.stop_before_delay(timeout_s),
            "wait": _wait,
            "before_sleep": self._note,
            "reraise": True,
        }

    def call(self, function: Callable[[], T]) -> T:
        """Call something that blocks, until it comes to a result.

        Raises
        ------
        CorgiArrowError
            What the last try raised, without secrets, and without the original beside it.
        """
        retrying = tenacity.Retrying(**self._options)
        try:
            return retrying(function)
        except kinds_of_faults() as error:
            failed = self._ours(error, retrying.statistics)
        raise failed

    async def wait_for(self, function: Callable[[int], Awaitable[T]]) -> T:
        """Call a coroutine function with the number of the try, from 1 on, until it comes to a result.

        Raises
        ------
        CorgiArrowError
            As :meth:`call`.
        """
        retrying = tenacity.AsyncRetrying(**self._options)

        async def next_try() -> T:
            return await function(int(retrying.statistics["attempt_number"]))

        try:
            return await retrying(next_try)
        except kinds_of_faults() as error:
            failed = self._ours(error, retrying.statistics)
        raise failed

    def _goes_on(self, error: BaseException) -> bool:
        if isinstance(error, CorgiArrowError) or not isinstance(error, kinds_of_faults()):
            return False
        fault = fault_of(error)
        if fault in (Fault.EXPIRED, Fault.DENIED) and not self._renewed:
            self._renewed = True
            return self._renew(fault)
        return fault is Fault.PASSES

    def _note(self, state: tenacity.RetryCallState) -> None:
        failed = None if state.outcome is None else state.outcome.exception()
        self._count()
        # Only the kind of the fault: its text may hold a signed URL.
        kind = "" if failed is None else type(_meant(failed)).__name__
        self._kinds[kind] = None
        LOG.warning("%s: %s, attempt %d of %d", self._what, kind, state.attempt_number, self._attempts)

    def _ours(self, error: BaseException, statistics: Mapping[str, Any]) -> CorgiArrowError:
        if isinstance(error, CorgiArrowError):
            return error
        attempts, seconds = statistics.get("attempt_number", 1), statistics.get("delay_since_first_attempt", 0.0)
        bounds = f"(bounds: {self._attempts} attempts, {self._timeout_s:.3g} s)"
        # A last try that the deadline cuts says nothing of what the storage has answered.
        others = ", ".join(kind for kind in self._kinds if kind != type(_meant(error)).__name__)
        failed = f"failed {bounds}{f', some with {others}' if others else ''}, the last with "
        tries = f"{attempts} attempts in {seconds:.1f} s {failed}" if attempts > 1 else ""
        return as_ours(error, self._what, self._secrets, tries)


def _wait(state: tenacity.RetryCallState) -> float:
    """Return the seconds to wait before the next try: none where the file system is opened anew."""
    failed = None if state.outcome is None else state.outcome.exception()
    return float(_WAIT(state)) if failed is not None and fault_of(failed) is Fault.PASSES else 0.0

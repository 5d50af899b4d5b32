"""Why a file at a URL cannot be opened, in one line, and what to do."""

from __future__ import annotations

from stepscope.errors import UnreadableInputError
from stepscope.run.remote import how_to_install

TRY_AGAIN = "try again, or copy the file to a local disk"


def cannot_be_opened(name: str, error: BaseException) -> UnreadableInputError:
    """Returns the error for a file or folder that cannot be opened.

    Args:
        name: Its URL, as messages may show it.
        error: What fsspec or the client of its service raised.
    """
    if isinstance(error, ImportError) and (remedy := how_to_install(name)):
        return UnreadableInputError(f"{name}: a package is missing: {remedy}")
    return UnreadableInputError(f"{name}: cannot be opened: {reason_for(error)}; {_advice(error)}")


def _causes(error: BaseException | None) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _status(error: BaseException) -> int | None:
    for cause in _causes(error):
        status = getattr(cause, "status", None)
        if isinstance(status, int):
            return status
    return None


def reason_for(error: BaseException) -> str:
    """Returns the reason for a failure in one line, preferring the client's error to fsspec's."""
    cause = _causes(error)[-1] if isinstance(error, FileNotFoundError) else error
    status = getattr(cause, "status", None)
    if isinstance(status, int):
        return f"the server responded {status} {getattr(cause, 'message', '')}".strip()
    if isinstance(cause, FileNotFoundError):
        return "no such file"
    text = " ".join(str(cause).split())
    if isinstance(cause, ImportError | ValueError) and text:
        return text
    return f"{type(cause).__name__}: {text}"


def _advice(error: BaseException) -> str:
    status = _status(error)
    causes = _causes(error)
    if status in (401, 403):
        return "configure the credentials of the service (fsspec configuration)"
    if status in (404, 410) or isinstance(causes[-1], FileNotFoundError | ValueError):
        return "check the address"
    if isinstance(error, ImportError):
        return "install it, or copy the file to a local disk and open that"
    return f"check the address and the network, {TRY_AGAIN}"

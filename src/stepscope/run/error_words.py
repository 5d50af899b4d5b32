"""What went wrong, in words for whoever reads it in a log, a manifest or a report.

The classes of errors are a stranger's, and can raise anything while they are printed. These
functions are called where nothing may fail: what an error fails to say is left out.
"""

from __future__ import annotations


def error_in_words(error: BaseException) -> str:
    """An error in one phrase.

    Errors of the operating system and Stepscope's own say what happened: their class and number
    would tell a reader nothing more. Of any other error the class is half of what it says.
    """
    told = ""
    if isinstance(error, OSError):
        told = _of_system(error)
    elif type(error).__module__.partition(".")[0] == "stepscope":
        told = said_by(error)
    return told or error_with_class(error)


def error_with_class(error: BaseException) -> str:
    """The class of an error and what it says, as Python prints it."""
    told = said_by(error)
    return f"{type(error).__name__}: {told}" if told else type(error).__name__


def said_by(error: BaseException) -> str:
    """What an error says; may be empty."""
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - see above
        return ""


def _of_system(error: OSError) -> str:
    """What an error of the operating system says; may be empty."""
    try:
        if not error.strerror:
            return ""
        told = str(error.strerror)
        return f"{told}: {error.filename}" if error.filename is not None else told
    except Exception:  # noqa: BLE001 - see above
        return ""

"""What can go wrong with the file storage, whichever store it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from switchyard.services.errors import InvalidInput, NotNow, SwitchyardError, Unknown
from switchyard.services.jobs.outcomes import DependencyUnavailable


class StorageError(SwitchyardError):
    """Base of this module's errors."""


class InvalidKey(StorageError, InvalidInput):
    """The key could leave the storage or is not portable between stores."""


class NotStored(StorageError, Unknown):
    """There is no file under this key."""


class FileTooLarge(StorageError, InvalidInput):
    """The file is larger than the caller allows; nothing of it was kept."""


class DiskFull(StorageError, NotNow):
    """The disk has no room for the file; nothing of it was kept."""


class StorageAway(StorageError, DependencyUnavailable):
    """The object store does not answer; whether the last write was done is not known. A job that
    meets it uses up no attempt."""


NO_ROOM = ("os error 28)", "os error 122)")
"""How obstore says ENOSPC and EDQUOT, which have no error of their own there."""


@contextmanager
def needing_room() -> Iterator[None]:
    """Around whatever writes. Raises DiskFull where the disk is full."""
    try:
        yield
    except Exception as error:
        if any(each in str(error) for each in NO_ROOM):
            raise DiskFull("the disk of the file storage is full") from error
        raise

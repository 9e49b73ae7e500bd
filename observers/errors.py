"""The errors of the package. Each message says what was found, what was expected, and what to do next.

ObserversError                      the root: catch it for all of the following
├── ArtifactError                   an artifact cannot be logged, found or kept
│   ├── ArtifactNotFoundError       there is no such artifact or version; a LookupError
│   ├── ArtifactDamagedError        a manifest or a content has changed since it was logged
│   ├── ArtifactMovedError          an alias names another version than expected
│   └── ReservedNameError           an artifact has the name of a file of the record; a FileExistsError
├── DestinationError                the database to deliver to is named incorrectly; a ValueError
├── MediaError                      a logged medium cannot be shown; a ValueError
├── MetricError                     a metric has an invalid name, value or step; a TypeError, a ValueError
├── MissingExtraError               an optional dependency is not installed; a RuntimeError
├── NotifyError                     addresses of notifications cannot be used; a ValueError
├── RecordError                     a name leads out of a run's folder; a ValueError
├── ResumeError                     a run cannot be resumed, or its record cannot be rewound; a RuntimeError
└── SealError                       a checkpoint has changed since it was saved; a ValueError

Sacred's `sacred.utils.ObserverError` is another error; none of these replaces one of Sacred's.
"""

from __future__ import annotations

__all__ = [
    "ArtifactDamagedError",
    "ArtifactError",
    "ArtifactMovedError",
    "ArtifactNotFoundError",
    "DestinationError",
    "MediaError",
    "MetricError",
    "MissingExtraError",
    "NotifyError",
    "ObserversError",
    "RecordError",
    "ReservedNameError",
    "ResumeError",
    "SealError",
]


class ObserversError(Exception):
    """The root of the errors that observers raise on purpose; the message says what to do next."""


class ArtifactError(ObserversError):
    """An artifact cannot be logged, found or kept."""


class ArtifactNotFoundError(ArtifactError, LookupError):
    """There is no such artifact, or no such version of it."""


class ArtifactDamagedError(ArtifactError):
    """A manifest or a content has changed since it was logged."""


class ArtifactMovedError(ArtifactError):
    """An alias names another version than expected, because somebody moved it; the message says which."""


class ReservedNameError(ArtifactError, FileExistsError):
    """An artifact has the name of a file of the record; Sacred raises a FileExistsError as well."""


class DestinationError(ObserversError, ValueError):
    """The database to deliver to is named incorrectly; the message contains no credentials."""


class MediaError(ObserversError, ValueError):
    """An image, a sound, a table or another medium cannot be shown."""


class MetricError(ObserversError, TypeError, ValueError):
    """A metric has a name that is not a text, or a value or step that is not a number; the message names the line."""


class MissingExtraError(ObserversError, RuntimeError):
    """An optional dependency is not installed; the message names the extra to install."""


class NotifyError(ObserversError, ValueError):
    """Addresses of notifications cannot be used; the message contains none of them."""


class RecordError(ObserversError, ValueError):
    """A name in a record, or for it, leads out of the run's folder."""


class ResumeError(ObserversError, RuntimeError):
    """A run cannot be resumed, or its record cannot be rewound."""


class SealError(ObserversError, ValueError):
    """A sealed file has changed since it was saved; the message says how."""

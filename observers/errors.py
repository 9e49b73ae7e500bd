"""The errors of the package. Each says in one sentence what was got, what was expected, and what to do next.

ObserversError                      the root: catch it for all that follows
├── ArtifactError                   an artifact cannot be logged, found or kept
│   ├── ArtifactNotFoundError       there is no such artifact or version; a LookupError
│   ├── ArtifactDamagedError        a manifest or a content is not what was logged
│   └── ReservedNameError           an artifact has the name of a file of the record; a FileExistsError
├── DestinationError                the database to deliver to is not named as it should be; a ValueError
├── MediaError                      what was logged beside numbers cannot be shown; a ValueError
├── MetricError                     a metric cannot be logged: name, value or step are wrong; a TypeError, a ValueError
├── MissingExtraError               an optional dependency is not installed; a RuntimeError
├── RecordError                     a name leads out of a run's folder; a ValueError
├── ResumeError                     a run cannot be resumed, or its record not be rewound; a RuntimeError
└── SealError                       a checkpoint is not as it was saved; a ValueError

Sacred has a `sacred.utils.ObserverError`, which is another: none of these replaces one of Sacred's.
"""

from __future__ import annotations

__all__ = [
    "ArtifactDamagedError",
    "ArtifactError",
    "ArtifactNotFoundError",
    "DestinationError",
    "MediaError",
    "MetricError",
    "MissingExtraError",
    "ObserversError",
    "RecordError",
    "ReservedNameError",
    "ResumeError",
    "SealError",
]


class ObserversError(Exception):
    """The root of what observers raise on purpose: one sentence, which says what to do next."""


class ArtifactError(ObserversError):
    """An artifact cannot be logged, found or kept."""


class ArtifactNotFoundError(ArtifactError, LookupError):
    """There is no such artifact, or no such version of it."""


class ArtifactDamagedError(ArtifactError):
    """A manifest or a content is not what was logged."""


class ReservedNameError(ArtifactError, FileExistsError):
    """An artifact has the name of a file of the record; Sacred raises a FileExistsError, too."""


class DestinationError(ObserversError, ValueError):
    """The database to deliver to is not named as it should be; the message holds no credentials."""


class MediaError(ObserversError, ValueError):
    """An image, a sound, a table or another medium cannot be shown."""


class MetricError(ObserversError, TypeError, ValueError):
    """A metric cannot be logged: its name is no text, or its value or step no number; the message names the line."""


class MissingExtraError(ObserversError, RuntimeError):
    """An optional dependency is not installed; the message names the extra to install."""


class RecordError(ObserversError, ValueError):
    """A name in a record, or for it, leads out of the run's folder."""


class ResumeError(ObserversError, RuntimeError):
    """A run cannot be resumed, or its record cannot be rewound."""


class SealError(ObserversError, ValueError):
    """A sealed file is not as it was saved; the message says in a few words why."""

"""The event files that TensorBoard draws curves of."""

import importlib
import sys
import types

# tensorboardX imports these where they are installed, for seconds, and scalars need none of them.
_NOT_NEEDED = ("torch", "google.cloud.storage", "boto3")


def open_board(folder: str, first_step: int):
    """A writer of scalars; what an earlier run drew from `first_step` on is not shown."""
    return _tensorboard().SummaryWriter(folder, purge_step=first_step)


def _tensorboard() -> types.ModuleType:
    hidden = [name for name in _NOT_NEEDED if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: an import says that there is none
    try:
        return importlib.import_module("tensorboardX")
    finally:
        for name in hidden:
            del sys.modules[name]

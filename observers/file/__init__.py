"""`FileObserver`, and attaching it."""

import configs.importing

# Before the modules here import it.
configs.importing.import_sacred()

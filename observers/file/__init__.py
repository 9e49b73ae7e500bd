"""`FileObserver`, and attaching it."""

import sacristan.configs.importing

# Before the modules here import it.
sacristan.configs.importing.import_sacred()

"""`TensorBoardObserver`: event files."""

import configs.importing

# Before the modules here import it.
configs.importing.import_sacred()

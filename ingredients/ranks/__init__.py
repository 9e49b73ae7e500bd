"""Several processes that train together: the rank of each, their notices and exchanges, and the death of one."""

"""Several processes that train together: which rank this one is, what ranks tell each other, and how one may die."""

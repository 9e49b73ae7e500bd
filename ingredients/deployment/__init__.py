"""Models outside the lab: files that other programs run, compared with the model before they are written."""

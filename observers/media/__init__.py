"""Media that a run can log beside numbers: images, histograms, tables, figures, texts."""

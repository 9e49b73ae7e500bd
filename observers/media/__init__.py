"""Media that a run can log beside numbers: images, histograms, tables, sounds, videos and so on."""

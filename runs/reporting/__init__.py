"""Reports: a set of runs as one HTML file to send to somebody."""

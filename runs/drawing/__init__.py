"""Curves as SVG, files of matplotlib or text in a terminal; HTML of plain data; output files."""

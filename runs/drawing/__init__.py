"""Curves as SVG, matplotlib files or terminal text; HTML of plain data; output files."""

"""Decimation of curves, SVG and HTML, made of plain data: what pages, notebooks and reports are put together from."""

"""Models without Sacred: networks, and building them."""

"""Past runs in notebooks, with the classes and methods that incense gave them."""

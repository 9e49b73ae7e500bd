"""What the commands share: the arguments that people type, and what is printed on the terminal."""

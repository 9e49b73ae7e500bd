"""What reads runs back. It imports no torch, no ingredients and no experiments."""

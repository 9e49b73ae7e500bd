"""What is found out by trying, before a training: a learning rate, the largest batch. Without Sacred."""

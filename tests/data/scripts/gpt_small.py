# overrides of gpt.py
n_embd = 16
max_iters = 7

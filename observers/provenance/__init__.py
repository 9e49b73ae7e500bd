"""What a run was made of: git, sources, packages, GPUs, determinism flags."""

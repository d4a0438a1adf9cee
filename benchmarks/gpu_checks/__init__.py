"""What `gpu_check.py` runs, by what is asked: do results agree, do graphs replay, what does a step cost."""

"""A server of the Model Context Protocol: a coding agent asks about runs, and gets the documents of `--json`.

It only reads. Each answer is marked as data that runs wrote, and is bounded in size and time.
"""

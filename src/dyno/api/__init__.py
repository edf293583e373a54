"""What `import dyno` offers: the functions that the commands call, with values back instead of printed text.

Nothing here prints. `dyno/__init__.py` loads a module of this room when one of its names is used for the first time.
"""

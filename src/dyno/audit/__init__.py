"""Judges documents of others: files in, rows and findings out.

The door: `document.read` makes a document of a file, `audit.audit` finds what is wrong with documents, and `printed`
prints it. Only conduct/ and cli/ import this room.
"""
